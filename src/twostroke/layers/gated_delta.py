"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464), and the convolution before it.

Each value head keeps a matrix ``S`` ``[key_dim, value_dim]``, to which every token does

    S = decay * S;  S = S + key (value - key S)^T * rate;  out = query S
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def short_convolution(
    x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A causal convolution of each channel by itself.

    Summed tap by tap, so that a token's result does not depend on how many come with it.

    Args:
        x: ``[tokens, channels]``.
        before: The inputs just before, ``[kernel - 1, channels]``.
        weight: ``[channels, kernel]``.
        bias: ``[channels]``.

    Returns:
        (float32 ``[tokens, channels]``; the last ``kernel - 1`` inputs).
    """
    inputs = torch.cat((before, x))
    wide, taps, tokens = inputs.float(), weight.float(), len(x)
    out = wide[:tokens] * taps[:, 0]
    for tap in range(1, taps.shape[1]):
        out = out + wide[tap : tap + tokens] * taps[:, tap]
    return out if bias is None else out + bias.float(), inputs[tokens:]


def gated_delta(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token: each one's result is the same whatever comes with it.

    Args:
        query: float32 ``[tokens, heads, key_dim]`` of length 1, scaled.
        key: float32 ``[tokens, heads, key_dim]`` of length 1, unscaled.
        value: float32 ``[tokens, heads, value_dim]``.
        decay: float32 ``[tokens, heads]``, in (0, 1].
        rate: float32 ``[tokens, heads]``.
        state: ``[heads, key_dim, value_dim]``, not changed; bfloat16 is rounded after each token.

    Returns:
        (``[tokens, heads, value_dim]``; the state after the last token).
    """
    outs, kept, state = [], state.dtype, state.float()
    rows = (x[:, :, None] for x in (query, key, value))  # [tokens, heads, 1, size]
    factors = (x[:, :, None, None] for x in (decay, rate))
    for q, k, v, g, b in zip(*rows, *factors, strict=True):
        state = state * g
        added = (v - k @ state) * b
        state = torch.baddbmm(state, k.transpose(1, 2), added)
        if kept is not torch.float32:
            state = state.to(kept).float()
        outs.append(q @ state)
    return torch.stack(outs)[:, :, 0], state.to(kept)


def unit_length(x: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension; ``eps`` as in the models' own code."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def decays(inputs: Tensor, log_rates: Tensor, bias: Tensor) -> Tensor:
    """``exp(-exp(log_rates) * softplus(inputs + bias))``, float32 (Mamba, arXiv:2312.00752)."""
    return torch.exp(-log_rates.float().exp() * F.softplus(inputs.float() + bias.float()))
