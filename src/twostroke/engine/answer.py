"""Whole answers, gathered from the outputs of the steps that made them."""

from __future__ import annotations

from dataclasses import dataclass, field

from twostroke.core.distribution import Distribution
from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason


@dataclass(slots=True)
class CollectedAnswer:
    """One sample of a request: what its outputs held so far.

    Attributes:
        index: Which of the request's ``n`` samples it is.
        logprobs: One entry per token where asked for, else empty.
        prompt_logprobs: For the prompt's tokens but the first, where asked for; the request's first
            sample has them. Else ``None``.
        distribution: The first token's, where asked for.
        finish_reason: ``None`` until the sample has ended.
        num_cached_tokens: Prompt tokens that the prefix cache had.
        vector: The packed vector, for a request that wanted one.
        error: Why the request failed, if it did; the rest is what there was before.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    distribution: Distribution | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    vector: bytes | None = None
    error: TwostrokeError | None = None

    def add(self, output: RequestOutput) -> None:
        """Add what a step brought to this sample."""
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or []) + output.prompt_logprobs
        self.distribution = self.distribution or output.distribution
        self.num_cached_tokens = output.num_cached_tokens
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
            self.error = output_error(output)
            self.vector = output.vector

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the chosen tokens' log-probabilities (0 unless ``logprobs`` were asked for)."""
        return sum(position.chosen.logprob for position in self.logprobs)


def output_error(output: RequestOutput) -> TwostrokeError | None:
    """Why the request failed, if it did."""
    return None if output.error is None else output.error.to_exception()


def raise_output_error(output: RequestOutput) -> None:
    """Raise what ``output_error`` returns, if that is an error."""
    if (error := output_error(output)) is not None:
        raise error
