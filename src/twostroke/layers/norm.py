"""Normalizations of the last dimension, each computed in float32 and returned in x's dtype."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from twostroke.kernels.calls import NormCall
from twostroke.kernels.library import Library
from twostroke.layers.gpu.load import load_operators


class Norm(Protocol):
    """See the module; ``weight`` broadcasts (one row per attention head, say).

    Attributes:
        kernel_call: The compiled kernel's arguments, valid as long as this lives; ``None`` if
            PyTorch computes.
    """

    weight: Tensor
    eps: float
    kernel_call: NormCall | None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        ...

    def of_sum(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """``residual + update`` [tokens, size], and its norm: on a GPU in one launch."""
        ...


# From weight, epsilon and the compiled kernels, if they are to be used.
MakeNorm = Callable[[Tensor, float, Library | None], Norm]

# ``NormKind`` in ``cpp/calls.hpp``.
_RMS, _WIDE, _CENTERED = range(3)


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich 2019).

    Args:
        weight: ``[size]``, or ``[rows, size]`` of rows that take turns.
        library: The compiled kernels: bfloat16 on a CPU.
    """

    __slots__ = ("_library", "eps", "gpu", "kernel_call", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._library = library
        self.gpu = load_operators(weight.device)
        self.kernel_call = _kernel_call(weight, _RMS, library)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gpu is not None:
            return self.gpu.normalize(x, self.weight, self.eps, rounded=True)
        if self._library is not None and self.kernel_call is not None:
            return _compiled(self._library, self.kernel_call, self.weight, x, self.eps)
        # Rounded before the weight is applied, as transformers does: the reference for parity.
        return self.weight * _unit(x.float(), self.eps).to(x.dtype)

    def of_sum(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        if self.gpu is None:
            return _one_by_one(self, residual, update)
        return self.gpu.add_and_normalize(residual, update, self.weight, self.eps, rounded=True)


class OffsetNorm:
    """RMS norm that multiplies by ``1 + weight``, and rounds after that (Gemma)."""

    __slots__ = ("_factor", "_library", "eps", "gpu", "kernel_call", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._factor = 1.0 + weight.float()
        self._library = library
        self.gpu = load_operators(weight.device)
        self.kernel_call = _kernel_call(self._factor, _WIDE, library)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gpu is not None:
            return self.gpu.normalize(x, self._factor, self.eps, rounded=False)
        if self._library is not None and self.kernel_call is not None:
            return _compiled(self._library, self.kernel_call, self._factor, x, self.eps)
        return (_unit(x.float(), self.eps) * self._factor).to(x.dtype)

    def of_sum(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        if self.gpu is None:
            return _one_by_one(self, residual, update)
        return self.gpu.add_and_normalize(residual, update, self._factor, self.eps, rounded=False)


class CenteredNorm:
    """``(x - mean) / sqrt(variance + eps) * weight``: LayerNorm without a bias (Cohere)."""

    __slots__ = ("_library", "_wide", "eps", "gpu", "kernel_call", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._wide = weight.float()
        self._library = library
        self.gpu = load_operators(weight.device)
        self.kernel_call = _kernel_call(self._wide, _CENTERED, library)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gpu is not None:
            return self.gpu.normalize(x, self._wide, self.eps, centered=True, rounded=False)
        if self._library is not None and self.kernel_call is not None:
            return _compiled(self._library, self.kernel_call, self._wide, x, self.eps)
        wide = x.float()
        centered = wide - wide.mean(-1, keepdim=True)
        return (_unit(centered, self.eps) * self._wide).to(x.dtype)

    def of_sum(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        if self.gpu is None:
            return _one_by_one(self, residual, update)
        return self.gpu.add_and_normalize(
            residual, update, self._wide, self.eps, centered=True, rounded=False
        )


class UnitNorm:
    """``x / sqrt(mean(x^2) + eps)``, without a weight: of heads (Llama 4, Gemma 4).

    Args:
        shape: ``[heads, size]``.
        library: The compiled kernels: bfloat16 on a CPU.
    """

    __slots__ = ("_eps", "_library", "_ones", "kernel_call")

    def __init__(self, eps: float, shape: tuple[int, int], library: Library | None) -> None:
        self._eps, self._library = eps, library
        self._ones = torch.ones(shape)  # what the kernel multiplies by
        self.kernel_call = _kernel_call(self._ones, _WIDE, library)

    def __call__(self, x: Tensor) -> Tensor:
        if self._library is not None and self.kernel_call is not None:
            return _compiled(self._library, self.kernel_call, self._ones, x, self._eps)
        return _unit(x.float(), self._eps).to(x.dtype)


class MultipliedNorm:
    """What another gives, times a factor (Falcon-H1)."""

    __slots__ = ("_factor", "_norm", "eps", "kernel_call", "weight")

    def __init__(self, norm: Norm, factor: float) -> None:
        own = norm.kernel_call
        self.kernel_call = None if own is None else NormCall(own.weight, own.kind, factor)
        self.weight, self.eps = norm.weight, norm.eps
        self._norm, self._factor = norm, factor

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x) * self._factor

    def of_sum(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        total, normed = self._norm.of_sum(residual, update)
        return total, normed * self._factor


def _one_by_one(norm: Norm, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """What ``of_sum`` is to give, in PyTorch's operators or the compiled kernels."""
    total = residual + update
    return total, norm(total)


def _kernel_call(weight: Tensor, kind: int, library: Library | None) -> NormCall | None:
    return None if library is None else NormCall(weight.data_ptr(), kind)


def _compiled(library: Library, call: NormCall, weight: Tensor, x: Tensor, eps: float) -> Tensor:
    """``x`` [..., size] by the kernel; row after row takes the next row of ``weight``."""
    x, size = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    counts = x.numel() // size, size
    weights = weight.numel() // size
    library.norm(ctypes.byref(call), weights, x.data_ptr(), out.data_ptr(), *counts, eps)
    return out


def _unit(wide: Tensor, eps: float) -> Tensor:
    """Scale rows to a root mean square of 1."""
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
