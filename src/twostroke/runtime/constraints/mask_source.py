"""What a step knows of its answers' forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from twostroke.core.step import StepResult
from twostroke.sampling.token_masks import TokenMask

StepMasks = Mapping[str, Sequence[TokenMask]]  # by request id, for the first of its drawn rows


class MaskSource(Protocol):
    """The masks of one step, as they are being computed."""

    def take(self, result: StepResult, seconds: float) -> StepMasks:
        """Wait for them. A request whose masks fail or are late draws nothing, as ``result`` says.

        Args:
            seconds: That the pass has taken.
        """


class NoMasks:
    """No answer of the step has a form."""

    def take(self, result: StepResult, seconds: float) -> StepMasks:
        return {}


NO_MASKS = NoMasks()
