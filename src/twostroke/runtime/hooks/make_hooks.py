"""The hooks of an executor, in order."""

from __future__ import annotations

from twostroke.kv_tiers.transfers import Transfers
from twostroke.runtime.adapters.store import AdapterStore
from twostroke.runtime.constraints.states import ConstraintStates
from twostroke.runtime.hooks.adapters import AdapterRows
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.hooks.constraints import Constraints
from twostroke.runtime.hooks.distributions import Distributions
from twostroke.runtime.hooks.drafts import DraftsAcceptedAtARate, ProposedDrafts
from twostroke.runtime.hooks.prompt_scores import PromptScores
from twostroke.runtime.hooks.tiers import NoTiers, TierTransfers
from twostroke.runtime.hooks.vectors import Vectors
from twostroke.spec_decode.base import Proposer
from twostroke.spec_decode.synthetic import SyntheticAcceptance


def make_hooks(
    transfers: Transfers | None,
    proposer: Proposer | None,
    synthetic: SyntheticAcceptance | None,
    constraints: ConstraintStates,
    vectors: Vectors,
    store: AdapterStore | None = None,
) -> list[PassHook]:
    """All hooks, so that ``after`` runs from the last to the first, and does in turn:

    1. score prompts, and pool the states of prompts that want a vector;
    2. explain draws;
    3. add the tokens that an answer's form forces;
    4. guess drafts of what follows them;
    5. copy blocks from tiers, for a share of the time that all this took.
    """
    hooks: list[PassHook] = [NoTiers() if transfers is None else TierTransfers(transfers)]
    if proposer is not None:
        hooks.append(ProposedDrafts(proposer))
    if synthetic is not None:
        hooks.append(DraftsAcceptedAtARate(synthetic))
    if store is not None:
        hooks.append(AdapterRows(store))
    return [*hooks, Constraints(constraints), Distributions(), vectors, PromptScores()]
