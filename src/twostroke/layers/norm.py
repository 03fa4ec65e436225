"""Normalizations of the last dimension, each computed in float32 and returned in x's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from twostroke.kernels.library import Library


class Norm(Protocol):
    """See the module; ``weight`` broadcasts (one row per attention head, say)."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``, contiguous."""
        ...


# From weight, epsilon and the compiled kernels, if they are to be used.
MakeNorm = Callable[[Tensor, float, Library | None], Norm]


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich 2019).

    Args:
        weight: Its last dimension is normalized over.
        library: The compiled kernels: bfloat16 on a CPU, a weight of one dimension.
    """

    __slots__ = ("_library", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._library = library if weight.ndim == 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._library is not None:
            out, size = torch.empty_like(x), x.shape[-1]
            rows = x.numel() // size
            self._library.rms_norm(
                x.data_ptr(), self.weight.data_ptr(), out.data_ptr(), rows, size, self.eps
            )
            return out
        # Rounded before the weight is applied, as transformers does: the reference for parity.
        return self.weight * _unit(x.float(), self.eps).to(x.dtype)


class OffsetNorm:
    """The same with ``1 + weight``, and rounded after it (Gemma)."""

    __slots__ = ("_factor", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._factor = 1.0 + weight.float()

    def __call__(self, x: Tensor) -> Tensor:
        return (_unit(x.float(), self.eps) * self._factor).to(x.dtype)


class CenteredNorm:
    """``(x - mean) / sqrt(variance + eps) * weight``: LayerNorm without a bias (Cohere)."""

    __slots__ = ("_wide", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._wide = weight.float()

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        centered = wide - wide.mean(-1, keepdim=True)
        return (_unit(centered, self.eps) * self._wide).to(x.dtype)


class UnitNorm:
    """``x / sqrt(mean(x^2) + eps)``, without a weight: of heads (Llama 4, Gemma 4)."""

    __slots__ = ("_eps",)

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return _unit(x.float(), self._eps).to(x.dtype)


class MultipliedNorm:
    """What another gives, times a factor (Falcon-H1)."""

    __slots__ = ("_factor", "_norm", "eps", "weight")

    def __init__(self, norm: Norm, factor: float) -> None:
        self.weight, self.eps = norm.weight, norm.eps
        self._norm, self._factor = norm, factor

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x) * self._factor


def _unit(wide: Tensor, eps: float) -> Tensor:
    """Of root mean square 1."""
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
