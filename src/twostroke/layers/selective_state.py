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
    decays = torch.exp(-steps * rates)
    outs, kept = [], state.dtype
    for value, step, decay, w, r in zip(x, steps, decays, write, read, strict=True):
        added = w[:, :, None] * (value * step[:, None])[:, None, :]
        state = (state.float() * decay[:, None, None] + added).to(kept)
        outs.append(torch.einsum("hsd,hs->hd", state.float(), r))
    return torch.stack(outs), state
