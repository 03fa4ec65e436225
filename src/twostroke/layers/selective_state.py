"""The recurrence of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).

Each head keeps a matrix ``S`` ``[state, head_dim]``, to which every token does

    S = exp(-rate * step) * S + write (step * x)^T;  out = read S + skip * x
"""

from __future__ import annotations

import torch
from torch import Tensor


def selective_state(
    x: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token: each one's result is the same whatever comes with it.

    All float32 but for the state, which may be bfloat16 and is rounded after each token then.

    Args:
        x: ``[tokens, heads, head_dim]``.
        steps: ``[tokens, heads]``, above 0.
        rates: ``[heads]``, above 0.
        write: ``[tokens, heads, state]``.
        read: ``[tokens, heads, state]``.
        state: ``[heads, state, head_dim]``, not changed.

    Returns:
        (``[tokens, heads, head_dim]`` without the skip; the state after the last token).
    """
    outs, kept, state = [], state.dtype, state.float()
    decays = torch.exp(-steps * rates)[:, :, None, None]
    values = (x * steps[:, :, None])[:, :, None]  # [tokens, heads, 1, head_dim]
    written, reads = write[:, :, :, None], read[:, :, None]
    for value, decay, w, r in zip(values, decays, written, reads, strict=True):
        state = state * decay + w * value
        if kept is not torch.float32:
            state = state.to(kept).float()
        outs.append(r @ state)
    return torch.stack(outs)[:, :, 0], state.to(kept)
