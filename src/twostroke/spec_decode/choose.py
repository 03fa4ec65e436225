"""The proposer that a configuration names, where it needs no model."""

from __future__ import annotations

from twostroke.core.speculation_config import Speculation
from twostroke.spec_decode.base import Proposer
from twostroke.spec_decode.ngram import NgramProposer
from twostroke.spec_decode.suffix import SuffixOptions, SuffixProposer
from twostroke.spec_decode.synthetic import SyntheticAcceptance, SyntheticProposer


def quoting_proposer(speculation: Speculation) -> Proposer:
    """``ngram``, ``suffix`` or ``synthetic``."""
    if speculation.method == "synthetic":
        return SyntheticProposer()
    if speculation.method == "ngram":
        return NgramProposer(
            speculation.min_match, max(speculation.min_match, speculation.max_match or 5)
        )
    assert speculation.method == "suffix"
    options = SuffixOptions(
        speculation.max_match or 24,
        speculation.max_factor,
        speculation.min_probability,
        speculation.max_cached_tokens,
    )
    return SuffixProposer(options)


def synthetic_acceptance(speculation: Speculation | None) -> SyntheticAcceptance | None:
    """How drafts are accepted under method ``synthetic``; ``None`` otherwise: by equality."""
    if speculation is None or speculation.method != "synthetic":
        return None
    return SyntheticAcceptance(speculation.acceptance_rate)
