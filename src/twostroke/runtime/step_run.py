"""One step while an executor carries it out: what its stages and hooks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from twostroke.core.errors import ErrorMessage, NonFiniteLogitsError
from twostroke.core.step import StepPlan, StepResult
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.input_batch import NO_ROWS, Batch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.verification import Acceptance
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


@dataclass(slots=True)
class StepRun:
    """One step being carried out. Valid until the executor's next step.

    Attributes:
        result: Stages and hooks add to it; it is the caller's afterwards.
        batch: The rows of the pass; empty until it is built, and if nothing is scheduled.
        needs_all_rows: Whether the pass gives ``hidden`` of every row. Hooks set it in ``before``.
        hidden: ``[rows, hidden]``, the last layer's, normed: of all rows, or of those that are
            drawn from; ``None`` if no pass ran.
        drawn_from: ``[rows, hidden]``, those that tokens were drawn from.
        mask_source: Gives masks for constrained answers. Constraints set it in ``before``.
        masks: What it gave for the draws.
        raw_logits: float32 [1, vocab] by request id, where a distribution is asked for; of the
            draws.
        accept: For measurements, decides on drafts instead of what is drawn. A hook sets it in
            ``before``.
        forced: Requests whose next tokens leave no choice, so that they get no drafts. The hook of
            constraints sets it in ``after``, that of drafts reads it.
    """

    plan: StepPlan
    model: LanguageModel
    kv: KVTensors
    result: StepResult = field(default_factory=StepResult)
    clock: PhaseClock = field(default_factory=PhaseClock)
    batch: Batch = field(default_factory=lambda: NO_ROWS)
    needs_all_rows: bool = False
    hidden: Tensor | None = None
    drawn_from: Tensor | None = None
    mask_source: MaskSource = NO_MASKS
    masks: StepMasks = field(default_factory=dict)
    raw_logits: dict[str, Tensor] = field(default_factory=dict)
    accept: Acceptance | None = None
    forced: set[str] = field(default_factory=set)

    def has_failed(self, request_id: str) -> bool:
        """Whether a request draws nothing in this step: it ended, or it is to run once more."""
        return request_id in self.result.errors or request_id in self.result.repeated

    def fail(self, index: int) -> None:
        """End the request of a share whose numbers are not finite, and zero what it wrote.

        With drafts it runs once more, without them: what is wrong may be theirs.
        """
        self.kv.zero_slots(self.batch.attention.slots[self.batch.rows(index)])
        share = self.batch.shares[index]
        if share.draft_token_ids:
            self.repeat(share.request_id)
            return
        error = NonFiniteLogitsError(
            f"the model produced NaN or infinite values for request {share.request_id} "
            f"at positions {share.start} to {share.start + share.num_tokens - 1}",
            hint=(
                "the weights may be broken, or --dtype bfloat16 or float32 may be needed instead of"
                " float16"
            ),
        )
        self.end(share.request_id, ErrorMessage.of(error))

    def end(self, request_id: str, error: ErrorMessage) -> None:
        """End a request with an error; what it had drawn is withdrawn."""
        self._withdraw(request_id)
        self.result.errors[request_id] = error

    def repeat(self, request_id: str) -> None:
        """Let a request compute this step's last token once more; it has drawn nothing."""
        self._withdraw(request_id)
        self.result.repeated.append(request_id)

    def _withdraw(self, request_id: str) -> None:
        drawn = self.result
        drawn.token_ids.pop(request_id, None)
        drawn.logprobs.pop(request_id, None)
        drawn.num_accepted_drafts.pop(request_id, None)
        drawn.prompt_logprobs.pop(request_id, None)
        self.raw_logits.pop(request_id, None)
