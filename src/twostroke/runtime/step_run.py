"""One step while an executor carries it out: what its stages and hooks share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from torch import Tensor

from twostroke.core.errors import ErrorMessage
from twostroke.core.step import StepPlan, StepResult
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.constraints.mask_source import NO_MASKS, MaskSource, StepMasks
from twostroke.runtime.input_batch import NO_ROWS, Batch
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.phase_clock import PhaseClock
from twostroke.runtime.verification import Acceptance
from twostroke.sampling.report import non_finite_error


@dataclass(slots=True)
class StepRun:
    """One step being carried out. Valid until its result is collected.

    On a GPU the next one may be launched before; ``hidden`` is that one's then.

    Attributes:
        dropped: Requests that lost their blocks while the pass ran: nothing of theirs counts, and
            what they wrote is zeroed.
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
        are_finite: Waits for whether the numbers that the pass writes are, where that was asked.
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
    are_finite: Callable[[], list[int]] | None = None
    accept: Acceptance | None = None
    forced: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    def has_failed(self, request_id: str) -> bool:
        """Whether a request draws nothing in this step: it ended, or it is to run once more."""
        result = self.result
        is_over = request_id in result.errors or request_id in self.dropped
        return is_over or request_id in result.repeated

    def drop(self, request_ids: Collection[str]) -> None:
        """Zero what some requests write in this step, and count nothing of theirs."""
        for index, share in enumerate(self.batch.shares):
            if share.request_id in request_ids and share.request_id not in self.dropped:
                self.kv.zero_slots(self.batch.attention.slots[self.batch.rows(index)])
                self.dropped.add(share.request_id)

    def drop_earlier(self, request_ids: Iterable[str]) -> None:
        """``drop`` those of an earlier step; whose name is new in this one is another request."""
        self.drop(set(request_ids) - self.plan.new_requests.keys())

    def fail(self, index: int) -> None:
        """End the request of a share whose numbers are not finite, and zero what it wrote.

        With drafts it runs once more, without them: what is wrong may be theirs.
        """
        self.kv.zero_slots(self.batch.attention.slots[self.batch.rows(index)])
        share = self.batch.shares[index]
        if share.draft_token_ids:
            self.repeat(share.request_id)
            return
        error = non_finite_error(share)
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
