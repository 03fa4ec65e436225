"""Log-probabilities of prompt tokens: the logits at position p score the token at p + 1."""

from __future__ import annotations

import torch

from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.step import ScheduledRequest
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.verification import MAX_LOGITS
from twostroke.sampling.logprobs import prompt_logprobs
from twostroke.sampling.request_state import RequestState


class PromptScores(PassHook):
    """Scores the prompts of requests that ask for ``prompt_logprobs``."""

    def before(self, step: StepRun) -> None:
        if any(map(_num_to_score, step.batch.shares, step.batch.requests)):
            step.needs_all_rows = True

    def after(self, step: StepRun) -> None:
        for index, (share, request) in enumerate(zip(step.batch.shares, step.batch.requests)):
            if request.params.prompt_logprobs is None or step.has_failed(request.request_id):
                continue
            if count := _num_to_score(share, request):
                self._score(step, index, count, request.params.prompt_logprobs)
            elif len(request.spec.prompt_token_ids) == 1 and share.start == 0:  # nothing to score
                step.result.prompt_logprobs[request.request_id] = []
        if step.needs_all_rows:
            step.clock.mark("sample")

    def _score(self, step: StepRun, index: int, count: int, num_top: int) -> None:
        """Score the tokens that follow the first ``count`` rows of a share, in bounded parts."""
        assert step.hidden is not None  # a share has rows, so a pass ran
        share, request = step.batch.shares[index], step.batch.requests[index]
        first = step.batch.query_start[index]
        next_ids = request.token_ids[share.start + 1 : share.start + 1 + count]
        size = max(1, MAX_LOGITS // step.model.spec.vocab_size)
        scores: list[PositionLogprobs] = []
        for start in range(0, count, size):
            stop = min(start + size, count)
            logits = step.model.logits(step.hidden[first + start : first + stop])  # [rows, vocab]
            if not bool(logits.max() < torch.inf):  # as in the sampler: -inf is fine, not NaN
                step.fail(index)
                return
            scores += prompt_logprobs(logits, next_ids[start:stop], num_top)
        step.result.prompt_logprobs[request.request_id] = scores


def _num_to_score(share: ScheduledRequest, request: RequestState) -> int:
    """How many of its tokens are followed by one of the prompt whose probability is asked for."""
    if request.params.prompt_logprobs is None:
        return 0
    return max(0, min(share.num_tokens, len(request.spec.prompt_token_ids) - 1 - share.start))
