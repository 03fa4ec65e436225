"""A draw that was begun where the logits are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from twostroke.sampling.report import NO_TOKEN, DrawReport, SamplerOutput

NON_FINITE = -2  # in place of a token, until it is on the host


@dataclass(slots=True)
class BegunDraw:
    """Tokens that are being drawn; the host has not waited for them.

    Attributes:
        tokens: int64 [rows] where the logits are; below 0 where a row has no token.
    """

    tokens: Tensor
    _report: DrawReport
    _arrival: Callable[[], list[int]]

    def finish(self) -> SamplerOutput:
        """Wait for them."""
        token_ids = self._arrival()
        if NON_FINITE in token_ids:
            bad = [row for row, token in enumerate(token_ids) if token == NON_FINITE]
            self._report.rule_out(bad)
            token_ids = [max(token, NO_TOKEN) for token in token_ids]
        return self._report.finish(token_ids)
