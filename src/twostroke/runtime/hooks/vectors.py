"""Embeddings and scores: the states of a prompt, pooled once it is through."""

from __future__ import annotations

from torch import Tensor

from twostroke.core.pooling import Pooling
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.vectors.dense_modules import DenseModules
from twostroke.runtime.vectors.pooling import Pooler, finish_embedding
from twostroke.runtime.vectors.scoring import ScoreHead, finish_score


class Vectors(PassHook):
    """Makes the vectors of requests that ask for them.

    Args:
        dense: The dense layer of the checkpoint's embeddings.
        score_head: The head of a ranking model that has one.
    """

    def __init__(self, dense: DenseModules, score_head: ScoreHead | None = None) -> None:
        self.pooler = Pooler()
        self._dense, self._score_head = dense, score_head

    def update(self, step: StepRun) -> None:
        self.pooler.release(step.plan.released)

    def before(self, step: StepRun) -> None:
        if any(request.spec.vector is not None for request in step.batch.requests):
            step.needs_all_rows = True

    def after(self, step: StepRun) -> None:
        for index, (share, request) in enumerate(zip(step.batch.shares, step.batch.requests)):
            if request.spec.vector is None or step.has_failed(share.request_id):
                continue
            assert step.hidden is not None  # a share has rows, so a pass ran
            rows = step.hidden[step.batch.rows(index)]
            num_prompt_tokens = len(request.spec.prompt_token_ids)
            state = self.pooler.add(share, request.spec.vector, num_prompt_tokens, rows)
            if state is None:
                continue
            if (vector := self._vector(step, state, request.spec.vector)) is None:
                step.fail(index)
            else:
                step.result.vectors[share.request_id] = vector
        if step.needs_all_rows:
            step.clock.mark("sample")

    def _vector(self, step: StepRun, state: Tensor, pooling: Pooling) -> bytes | None:
        if pooling.task == "embed":
            return finish_embedding(state, pooling, self._dense)

        def logits_of(row: Tensor) -> Tensor:
            return step.model.logits(row.to(step.model.dtype))

        return finish_score(state, pooling, self._score_head, logits_of)
