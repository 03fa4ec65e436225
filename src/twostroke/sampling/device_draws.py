"""The seam between the sampler and kernels that draw where the logits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from twostroke.sampling.request_state import RequestState


class DeviceDraws(Protocol):
    """Penalties and draws by kernels of the device that has the logits, which is not waited for.

    A draw is that of ``drawing.py`` but for the last bits of a probability: a weight may differ by
    2**-22 of itself, so a token may where the uniform number is so near to where the next begins.
    """

    def penalize(self, logits: Tensor, requests: Sequence[RequestState]) -> None:
        """What ``apply_penalties`` does."""
        ...

    def draw(
        self, logits: Tensor, highest: Tensor, rows: Sequence[int], requests: Sequence[RequestState]
    ) -> Tensor:
        """Temperature, top-k, top-p, min-p and the draw, for ``rows``, none of them greedy.

        Args:
            logits: float32 [requests, vocab] after all earlier filters, maybe NaN; not changed.
            highest: float32 [requests], the maxima; -inf where a row failed.
            requests: One per row of ``logits``.

        Returns:
            Token ids, int64 [rows]; any token where all logits are -inf.
        """
        ...
