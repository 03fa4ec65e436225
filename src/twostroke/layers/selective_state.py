"""The recurrence of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).

Each head keeps a matrix ``S`` ``[head_dim, state]``, to which every token does

    S = exp(-rate * step) * S + (step * x) write^T;  out = S read + skip * x
"""

from __future__ import annotations

import torch
from torch import Tensor


def selective_state(
    x: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token: each one's result is the same whatever comes with it. All float32.

    Args:
        x: ``[tokens, heads, head_dim]``.
        steps: ``[tokens, heads]``, above 0; ``rates``: ``[heads]``, above 0.
        write: ``[tokens, heads, state]``; ``read`` the same.
        state: ``[heads, head_dim, state]``, not changed.

    Returns:
        (``[tokens, heads, head_dim]`` without the skip; the state after the last token).
    """
    decays = torch.exp(-steps * rates)
    outs = []
    for value, step, decay, w, r in zip(x, steps, decays, write, read, strict=True):
        added = (value * step[:, None])[:, :, None] * w[:, None, :]
        state = state * decay[:, None, None] + added
        outs.append(torch.einsum("hds,hs->hd", state, r))
    return torch.stack(outs), state
