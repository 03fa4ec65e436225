"""Activations, most of them gated (Shazeer 2020), and the largest of each row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.library import Library
from twostroke.layers.gpu.load import load_operators


def silu_mul(gate_up: Tensor, library: Library | None) -> Tensor:
    """``silu(gate) * up`` of ``[rows, 2 * size]``, gates first; returns ``[rows, size]``."""
    if (fast := _by_kernel(gate_up, library, silu_mul)) is not None:
        return fast
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_mul(gate_up: Tensor, library: Library | None) -> Tensor:
    """``gelu(gate) * up``, as ``silu_mul``."""
    if (fast := _by_kernel(gate_up, library, gelu_mul)) is not None:
        return fast
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate) * up


def gelu_tanh_mul(gate_up: Tensor, library: Library | None) -> Tensor:
    """``gelu(gate) * up``, where gelu is approximated with tanh."""
    if (fast := _by_kernel(gate_up, library, gelu_tanh_mul)) is not None:
        return fast
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def clamped_mul(gate_up: Tensor, library: Library | None) -> Tensor:
    """``(up + 1) * gate * sigmoid(1.702 gate)`` of values that are clamped at 7 (gpt-oss)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(1.702 * gate))


def squared_relu(x: Tensor, library: Library | None) -> Tensor:
    """``max(x, 0)^2`` (So et al. 2021)."""
    if library is None:
        return F.relu(x).square()
    return _activated(x, x.shape[1], KERNEL_ACTIVATIONS[squared_relu], library)


def sigmoid_mul(gates: Tensor, x: Tensor, library: Library | None) -> Tensor:
    """``x * sigmoid(gates)``, both ``[rows, size]``; maybe ``x`` itself, changed."""
    if library is None:
        return x * torch.sigmoid(gates)
    x = x.contiguous()
    library.sigmoid_mul(gates.data_ptr(), gates.stride(0), x.data_ptr(), *x.shape)
    return x


def _by_kernel(gate_up: Tensor, library: Library | None, activation: Activation) -> Tensor | None:
    """The activation by a kernel, if there is one for where ``gate_up`` is."""
    kind = KERNEL_ACTIVATIONS[activation]
    if library is None:
        gpu = load_operators(gate_up.device)
        return None if gpu is None else gpu.gated_mul(gate_up, kind)
    return _activated(gate_up, gate_up.shape[1] // 2, kind, library)


def _activated(x: Tensor, size: int, kind: int, library: Library) -> Tensor:
    """Bfloat16 ``[rows, size]``."""
    x = x.contiguous()
    out = torch.empty(len(x), size, dtype=torch.bfloat16)
    library.activate(x.data_ptr(), out.data_ptr(), len(x), size, kind)
    return out


# From what comes before it, and the compiled kernels, if they are to be used.
Activation = Callable[[Tensor, Library | None], Tensor]
# What the kernels compute: ``Activation`` in ``cpp/kernels.hpp``.
KERNEL_ACTIVATIONS: dict[Activation, int] = {
    silu_mul: 0,
    gelu_mul: 1,
    gelu_tanh_mul: 2,
    squared_relu: 4,
}
# By their names in ``config.json``; each maps ``[rows, 2 * size]`` to ``[rows, size]``.
GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": silu_mul,
    "swish": silu_mul,
    "gelu": gelu_mul,
    "gelu_pytorch_tanh": gelu_tanh_mul,
    "clamped_swiglu": clamped_mul,
}
# Those without a gate, of ``[rows, size]``.
PLAIN_ACTIVATIONS: dict[str, Activation] = {"relu2": squared_relu}


def activation_of(name: str, *, gated: bool) -> Activation:
    return (GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS)[name]


def compiled_peaks(library: Library) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Finds the maximum of each row of float32 ``[rows, n]`` on a CPU, and its lowest index.

    The maximum of a row with NaN is NaN, as PyTorch's is.
    """

    def peaks(x: Tensor) -> tuple[Tensor, Tensor]:
        rows, size = x.shape
        x = x.contiguous()
        highest, index = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
        library.peaks(x.data_ptr(), highest.data_ptr(), index.data_ptr(), rows, size)
        return highest, index

    return peaks
