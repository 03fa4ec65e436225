"""From hidden states to vectors: the last or first token's, or the mean over a prompt's chunks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.core.pooling import Pooling, PoolingKind, pack_vector
from twostroke.core.step import ScheduledRequest
from twostroke.runtime.vectors.dense_modules import DenseModules


class Pooler:
    """Gathers the states of prompts that run in chunks. It keeps one float32 vector for each."""

    def __init__(self) -> None:
        self._gathered: dict[str, Tensor] = {}  # [hidden]: a running sum, or the first state

    def __len__(self) -> int:
        return len(self._gathered)

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests that lost their blocks: they are computed from the start, if again."""
        for request_id in request_ids:
            self._gathered.pop(request_id, None)

    def add(
        self, share: ScheduledRequest, pooling: Pooling, num_prompt_tokens: int, hidden: Tensor
    ) -> Tensor | None:
        """Take in the normed states of a share's tokens.

        Args:
            hidden: ``[tokens, hidden]``, all tokens of the share.

        Returns:
            The pooled state, float32 ``[hidden]``, once the prompt is through.
        """
        is_last = share.start + share.num_tokens >= num_prompt_tokens
        if pooling.kind == "last":
            return hidden[-1].float() if is_last else None
        request_id = share.request_id
        if share.start == 0:
            first = hidden[0] if pooling.kind == "cls" else hidden.sum(0, dtype=torch.float32)
            self._gathered[request_id] = first.to(torch.float32, copy=True)  # passes reuse theirs
        elif pooling.kind == "mean":
            self._gathered[request_id] += hidden.sum(0, dtype=torch.float32)
        if not is_last:
            return None
        gathered = self._gathered.pop(request_id)
        return gathered / num_prompt_tokens if pooling.kind == "mean" else gathered


def pool_whole(hidden: Tensor, kind: PoolingKind) -> Tensor:
    """The pooled state, float32 ``[hidden]``, of one prompt's ``[tokens, hidden]``."""
    if kind == "mean":
        return hidden.mean(0, dtype=torch.float32)
    return hidden[0 if kind == "cls" else -1].to(torch.float32, copy=True)


def finish_embedding(state: Tensor, pooling: Pooling, dense: DenseModules) -> bytes | None:
    """The embedding of a pooled state ``[hidden]``, packed; ``None`` if it is not finite.

    Through the checkpoint's linear layers, then cut, then normalised: the part of a Matryoshka
    embedding is one of its own.
    """
    vector = dense(state)[: pooling.size]
    if pooling.normalise:
        vector = F.normalize(vector, dim=0)
    return pack_vector(vector.tolist()) if bool(vector.isfinite().all()) else None
