"""Linear layers over weights that already exist: PyTorch's, and compiled ones on a CPU."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.calls import LinearCall
from twostroke.kernels.library import FORMATS, GROUP, Library
from twostroke.layers.gpu.load import load_fp8_linear, load_operators, load_quantized_linear
from twostroke.layers.packing import (
    PackedWeight,
    can_pack,
    pack,
    quantize_int4,
    quantize_int8,
    rows_of,
)
from twostroke.layers.stored_blocks import KeptWeight
from twostroke.layers.stored_weights import GROUP_INPUTS, StoredWeight, stored_rows


class Linear(Protocol):
    """``x @ weight.T + bias``, over a weight ``[out, in]``.

    No ``nn.Module``: nothing is trained, and its call overhead shows in small models.
    """

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``[rows, in]`` to ``[rows, out]`` in x's dtype; then add ``residual``, if given."""
        ...

    def adds(self, x: Tensor) -> bool:
        """Whether adding to the products of ``x`` costs no pass over them of its own."""
        ...

    def wide(self, x: Tensor) -> Tensor:
        """Map ``[rows, in]`` to float32 ``[rows, out]``."""
        ...

    def weight_rows(self, indices: Tensor) -> Tensor:
        """Rows ``indices`` of an exact weight, ``[indices, in]``: an embedding that shares it."""
        ...

    @property
    def inputs(self) -> int:
        """How many elements a row that it maps has."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the weight is kept as it was given, not rounded."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        ...

    @property
    def kernel_call(self) -> LinearCall | None:
        """The compiled kernel's arguments but for x and out, valid as long as this lives.

        ``None`` if PyTorch computes.
        """
        ...


def make_linear(
    weight: Tensor, bias: Tensor | None, quantization: str | None, library: Library | None
) -> Linear:
    """The fastest layer for this weight ``[out, in]``, of which it may keep a packed copy instead.

    Args:
        quantization: ``int8`` or ``int4`` (needs the kernels, of a CPU or a GPU), ``fp8`` (of a
            GPU), ``None`` for the weight's own precision, which it also keeps if its inputs are no
            multiple of 32, and for ``fp8`` its outputs of 16.
        library: The compiled kernels, if they are to be used.
    """
    if library is None and quantization is not None and weight.shape[1] % GROUP == 0:
        operators = load_operators(weight.device)
        if operators is not None and quantization == "fp8":
            return load_fp8_linear(weight, bias, operators) or TorchLinear(weight, bias)
        if operators is not None:
            codes, scales = (quantize_int8 if quantization == "int8" else quantize_int4)(weight)
            stored = StoredWeight(quantization, codes, scales.view(len(codes), -1))
            return load_quantized_linear(stored, bias, operators)
    for format in (quantization or "bfloat16", "bfloat16"):
        if library is not None and can_pack(weight, format):
            return PackedLinear(pack(weight, format), bias, library)
    return TorchLinear(weight, bias)


def kept_linear(
    weights: Sequence[KeptWeight], bias: Tensor | None, library: Library | None
) -> Linear:
    """One layer of weights that stay as they are stored, one after the other.

    Args:
        library: ``None`` on a GPU, where there is one weight, of integers.
    """
    if library is None:
        (weight,) = weights
        assert isinstance(weight, StoredWeight), "a GPU's kernels take codes and scales apart"
        operators = load_operators(weight.codes.device)
        assert operators is not None, "a weight stays as it is stored where kernels run"
        return load_quantized_linear(weight, bias, operators)
    parts, first = [], 0
    for weight in weights:
        outputs = weight.outputs
        own = None if bias is None else bias[first : first + outputs].contiguous()
        parts.append(PackedLinear(weight.packed(), own, library))
        first += outputs
    return parts[0] if len(parts) == 1 else JoinedLinear(parts, library)


def warn_of_exact(linears: Sequence[Linear], quantization: str) -> None:
    """Say how many layers ``--quantization`` cannot round; others that it leaves, it means to."""
    exact = sum(linear.is_exact and linear.inputs % GROUP != 0 for linear in linears)
    if exact:
        warnings.warn(
            f"{exact} of {len(linears)} linear layers keep their precision: --quantization"
            f" {quantization} needs inputs that are a multiple of {GROUP}",
            stacklevel=3,
        )


class TorchLinear:
    """PyTorch's own: any device, any dtype; on a GPU a kernel of ours where rows are few."""

    __slots__ = ("_gpu", "bias", "weight")

    is_exact = True
    kernel_call: LinearCall | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]
        self._gpu = load_operators(weight.device) if weight.is_contiguous() else None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._gpu is not None and self._gpu.are_few(x):
            return self._gpu.multiply_few(x, self.weight, self.bias, residual)
        out = F.linear(x, self.weight, self.bias)
        return out if residual is None else residual + out

    def adds(self, x: Tensor) -> bool:
        return self._gpu is not None and self._gpu.are_few(x)

    def wide(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).float()

    def weight_rows(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class PackedLinear:
    """The compiled kernel over packed weights, bfloat16 activations on a CPU.

    Every output is the sum of its products in the same order, whatever the number of rows: a
    request's numbers do not depend on the rest of the batch.
    """

    def __init__(self, packed: PackedWeight, bias: Tensor | None, library: Library) -> None:
        self.packed = packed
        self._bias = bias  # keeps alive what the call points to
        self._library = library
        # Arguments that differ from call to call are set by each.
        self._call = LinearCall(
            weight=packed.data.data_ptr(),
            scales=None if packed.scales is None else packed.scales.data_ptr(),
            offsets=None if packed.offsets is None else packed.offsets.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=packed.inputs,
            outputs=packed.outputs,
            format=FORMATS[packed.format],
        )

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = torch.empty(len(x), self.packed.outputs, dtype=torch.bfloat16)
        return multiply(self._call, x, out, residual, self._library)

    def adds(self, x: Tensor) -> bool:
        return True

    def wide(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), self.packed.outputs)
        return multiply(self._call, x, out, None, self._library)

    def weight_rows(self, indices: Tensor) -> Tensor:
        if self.packed.format in GROUP_INPUTS:
            return stored_rows(self.packed, indices)
        return rows_of(self.packed, indices)

    @property
    def inputs(self) -> int:
        return self.packed.inputs

    @property
    def is_exact(self) -> bool:
        return self.packed.format not in ("int8", "int4")

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    @property
    def kernel_call(self) -> LinearCall:
        return self._call


class JoinedLinear:
    """Layers with the same inputs as one: weights of several formats, one after the other."""

    def __init__(self, parts: Sequence[PackedLinear], library: Library) -> None:
        self._parts, self._library = parts, library
        self._calls = (LinearCall * len(parts))(*(part.kernel_call for part in parts))
        self._call = LinearCall(
            inputs=parts[0].packed.inputs,
            outputs=sum(part.packed.outputs for part in parts),
            parts=ctypes.addressof(self._calls),
            num_parts=len(parts),
        )

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = torch.empty(len(x), self._call.outputs, dtype=torch.bfloat16)
        return multiply(self._call, x, out, residual, self._library)

    def adds(self, x: Tensor) -> bool:
        return True

    def wide(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), self._call.outputs)
        return multiply(self._call, x, out, None, self._library)

    def weight_rows(self, indices: Tensor) -> Tensor:
        rows = torch.empty(len(indices), self._call.inputs, dtype=torch.bfloat16)
        first = 0
        for part in self._parts:
            own = (indices >= first) & (indices < first + part.packed.outputs)
            rows[own] = part.weight_rows(indices[own] - first)
            first += part.packed.outputs
        return rows

    @property
    def inputs(self) -> int:
        return int(self._call.inputs)

    @property
    def is_exact(self) -> bool:
        return all(part.is_exact for part in self._parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    @property
    def kernel_call(self) -> LinearCall | None:
        return self._call


def multiply(
    call: LinearCall, x: Tensor, out: Tensor, residual: Tensor | None, library: Library
) -> Tensor:
    """Run a layer's kernel on rows ``x``, into ``out``."""
    call.x, call.x_stride, call.rows = x.data_ptr(), x.stride(0), x.shape[0]
    call.out, call.float_out = out.data_ptr(), out.dtype is torch.float32
    call.residual = None if residual is None else residual.data_ptr()
    library.linear(ctypes.byref(call))
    return out


class MultipliedLinear:
    """Another layer, its outputs multiplied with ``factor``, float32 ``[out]`` (Falcon-H1)."""

    __slots__ = ("_factor", "_linear", "kernel_call")

    def __init__(self, linear: Linear, factor: Tensor) -> None:
        self._linear, self._factor = linear, factor.float().contiguous()
        self.kernel_call: LinearCall | None = None
        if (own := linear.kernel_call) is not None and not own.num_parts:
            self.kernel_call = LinearCall.from_buffer_copy(own)
            self.kernel_call.factors = self._factor.data_ptr()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self.wide(x).to(x.dtype)
        return out if residual is None else residual + out

    def adds(self, x: Tensor) -> bool:
        return False

    def wide(self, x: Tensor) -> Tensor:
        return self._linear.wide(x) * self._factor

    def weight_rows(self, indices: Tensor) -> Tensor:
        return self._linear.weight_rows(indices) * self._factor[indices, None]

    @property
    def inputs(self) -> int:
        return self._linear.inputs

    @property
    def is_exact(self) -> bool:
        return self._linear.is_exact

    @property
    def nbytes(self) -> int:
        return self._linear.nbytes
