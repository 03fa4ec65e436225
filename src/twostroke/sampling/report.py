"""What a call of the sampler gives back beside tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from twostroke.core.errors import NonFiniteLogitsError, TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.step import ScheduledRequest
from twostroke.sampling.logprobs import logprobs_of, position_logprobs
from twostroke.sampling.masks import nothing_left
from twostroke.sampling.request_state import RequestState

NO_TOKEN = -1


@dataclass(slots=True)
class SamplerOutput:
    """What was drawn, by row.

    Attributes:
        token_ids: One per row; ``NO_TOKEN`` (-1) for the rows in ``errors`` and ``non_finite``.
        logprobs: For the rows that ask for them, of the raw logits.
        raw_logits: float32 [1, vocab], copies, of the rows that draw their answer's first token and
            whose request asks for its distribution.
        errors: Rows in which every token was masked.
        non_finite: Rows with NaN or +inf among their logits, whatever masks hide.
    """

    token_ids: list[int]
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    raw_logits: dict[int, Tensor] = field(default_factory=dict)
    errors: dict[int, TwostrokeError] = field(default_factory=dict)
    non_finite: list[int] = field(default_factory=list)


class DrawReport:
    """What answers tell of their draws beside the token: kept of the raw logits, told at the end.

    Args:
        logits: float32 [rows, vocab], before any filter.
        requests: One per row.
    """

    def __init__(self, logits: Tensor, requests: Sequence[RequestState]) -> None:
        self._requests = requests
        self._asking = [
            row for row, request in enumerate(requests) if request.params.logprobs is not None
        ]
        # Copies, of these rows only.
        self._raw = logits[self._asking] if self._asking else logits.new_empty((0, logits.shape[1]))
        self._shown = {
            row: logits[row : row + 1].clone()
            for row, request in enumerate(requests)
            if request.shows_distribution
        }
        self._non_finite: list[int] = []

    def rule_out(self, rows: list[int]) -> None:
        """Rows with NaN or +inf: there is nothing to tell of them."""
        self._non_finite = rows
        self._raw[[place for place, row in enumerate(self._asking) if row in rows]] = 0

    def finish(self, token_ids: list[int]) -> SamplerOutput:
        """The output, given the tokens that were drawn, one per row."""
        failed = [row for row, token in enumerate(token_ids) if token == NO_TOKEN]
        return SamplerOutput(
            token_ids,
            self._logprobs(token_ids),
            {row: raw for row, raw in self._shown.items() if token_ids[row] != NO_TOKEN},
            {row: nothing_left(self._requests[row]) for row in failed if self._is_finite(row)},
            self._non_finite,
        )

    def _is_finite(self, row: int) -> bool:
        return row not in self._non_finite

    def _logprobs(self, token_ids: list[int]) -> dict[int, PositionLogprobs]:
        params = [self._requests[row].params for row in self._asking]
        num_top = [0 if each.logprob_token_ids else each.logprobs or 0 for each in params]
        # A failed row has no token to report on, but keeps its place: any token will do there.
        tokens = [max(token_ids[row], 0) for row in self._asking]
        entries = position_logprobs(self._raw, tokens, num_top)
        for place, each in enumerate(params):
            if each.logprob_token_ids:
                entries[place].top = logprobs_of(self._raw[place], each.logprob_token_ids)
        pairs = zip(self._asking, entries)
        return {row: entry for row, entry in pairs if token_ids[row] != NO_TOKEN}


def non_finite_error(share: ScheduledRequest) -> NonFiniteLogitsError:
    """Why a request ends in whose share of a step numbers are not finite."""
    return NonFiniteLogitsError(
        f"the model produced NaN or infinite values for request {share.request_id} "
        f"at positions {share.start} to {share.start + share.num_tokens - 1}",
        hint=(
            "the weights may be broken, or --dtype bfloat16 or float32 may be needed instead of"
            " float16"
        ),
    )
