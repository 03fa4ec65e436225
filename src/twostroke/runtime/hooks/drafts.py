"""Drafts of the next tokens, guessed once a step has drawn; and drafts accepted at a set rate."""

from __future__ import annotations

from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun
from twostroke.spec_decode.base import FinishedPass, Proposer
from twostroke.spec_decode.synthetic import SyntheticAcceptance


class ProposedDrafts(PassHook):
    """Asks a proposer, which it owns, for drafts where plans allow them."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer: Proposer | None = proposer

    def update(self, step: StepRun) -> None:
        if self.proposer is not None:
            self.proposer.update(step.plan)

    def before(self, step: StepRun) -> None:
        if self.proposer is not None and self.proposer.reads_all_rows:
            step.needs_all_rows = True

    def after(self, step: StepRun) -> None:
        batch = step.batch
        if self.proposer is None or not batch.shares:
            return
        finished = FinishedPass(
            plan=step.plan,
            requests=batch.requests,
            block_table=batch.attention.block_table,
            token_ids=step.result.token_ids,
            hidden=step.drawn_from,
            forced=step.forced,
            states=step.hidden if step.needs_all_rows else None,
        )
        step.result.draft_token_ids |= self.proposer.propose(finished)
        step.clock.mark("draft")

    def close(self) -> None:
        self.proposer = None  # its weights and KV tensors


class DraftsAcceptedAtARate(PassHook):
    """Accepts drafts at a rate, whatever is drawn; for measurements."""

    def __init__(self, synthetic: SyntheticAcceptance) -> None:
        self._synthetic = synthetic

    def before(self, step: StepRun) -> None:
        step.accept = self._synthetic.num_accepted
