"""Loads the compiled kernels (``cpp/``) and declares their functions.

No torch here: a call gets addresses and returns nothing.

The build of the package compiles them (``hatch_build.py``). Without them, or on a processor that
they do not support, everything runs on PyTorch's own operators.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from twostroke.kernels import calls, pass_calls
from twostroke.kernels.calls import (
    AttentionCall,
    ConvolutionCall,
    DeltaCall,
    ExpertsCall,
    LinearCall,
    Mamba2Call,
    NormCall,
)
from twostroke.kernels.pass_calls import DraftCall, PassCall

# In a folder that is no package: the library is no Python module.
LIBRARY_PATH = Path(__file__).parent / "cpp" / "kernels.so"

# The same constants are in ``cpp/calls.hpp``.
LANES = 16  # Outputs in a block of packed weights.
GROUP = 32  # Inputs that share a scale in 4-bit weights.
FORMATS = {  # ``WeightFormat``
    "bfloat16": 0,
    "int8": 1,
    "int4": 2,
    "q8_0": 3,
    "q4_k": 4,
    "q5_k": 5,
    "q6_k": 6,
    "mxfp4": 7,
    "uint4": 8,
}
# ``Activation``, by their names.
ACTIVATIONS = {
    "silu": 0,
    "swish": 0,
    "gelu": 1,
    "gelu_pytorch_tanh": 2,
    "clamped_swiglu": 3,
    "relu2": 4,
}
MAX_HEAD_DIM = 576
MAX_KERNEL = 8  # Tokens that a short convolution sees.


class Library:
    """The compiled kernels. Calls release the GIL.

    Of several threads that call at once, one gets the workers; the others compute alone. The
    functions' arguments are those of ``TWOSTROKE_KERNELS`` in ``cpp/kernels.hpp``.

    Raises:
        OSError: The file cannot be loaded, or was built from other sources.
        AttributeError: It lacks a function.
    """

    def __init__(self, path: Path = LIBRARY_PATH) -> None:
        loaded = ctypes.CDLL(str(path))

        def declare(name: str, *argtypes: type, restype: type | None = None) -> Callable[..., Any]:
            function: Callable[..., Any] = getattr(loaded, f"twostroke_{name}")
            function.argtypes, function.restype = argtypes, restype  # type: ignore[attr-defined]
            return function

        layout = declare("layout", restype=c_int64)
        structures = (own for part in (calls, pass_calls) for own in vars(part).values())
        sizes = {own: ctypes.sizeof(own) for own in structures if _is_structure(own)}
        if layout() != calls.SEGMENT_BYTES + sum(sizes.values()) + len(FORMATS):
            raise OSError(f"{path} was built from other sources")
        find = declare("kernel", c_char_p, restype=c_void_p)

        def kernel(name: str, *argtypes: type) -> Callable[..., Any]:
            address = find(name.encode())
            if address is None:
                raise AttributeError(f"{path} has no kernel {name}")
            return ctypes.CFUNCTYPE(None, *argtypes)(address)

        address, count = c_void_p, c_int64
        self.linear = kernel("linear", POINTER(LinearCall))
        # calls, count, x, x_stride, x_step, rows, out, out_stride, out_step
        self.part_linears = kernel(
            "part_linears", POINTER(LinearCall), count, address, *[count] * 3, address, count, count
        )
        self.attention = kernel("attention", POINTER(AttentionCall))
        self.layers = kernel("decoder_layers", POINTER(PassCall))
        self.draft = kernel("draft", POINTER(DraftCall))
        # norm, weights, x, out, rows, size, eps
        self.norm = kernel(
            "norm_rows", POINTER(NormCall), count, address, address, count, count, c_float
        )
        self.experts = kernel("experts", POINTER(ExpertsCall))
        self.gated_convolution = kernel("gated_convolution", POINTER(ConvolutionCall))
        self.gated_delta = kernel("gated_delta", POINTER(DeltaCall))
        self.mamba2 = kernel("mamba2", POINTER(Mamba2Call))
        # qk, stride, tokens, heads, head_dim, positions, cos, sin
        self.rotate = kernel(
            "rotate", address, count, count, count, count, address, address, address
        )
        # queries, stride, tokens, size, positions, every, scale
        self.grow = kernel("grow", address, count, count, count, address, c_float, c_float)
        # x, out, rows, size, activation
        self.activate = kernel("activate", address, address, count, count, c_int32)
        # gates, stride, x, rows, size
        self.sigmoid_mul = kernel("sigmoid_mul", address, count, address, count, count)
        # x, highest, index, rows, size
        self.peaks = kernel("peaks", address, address, address, count, count)
        # format, rows, outputs, inputs, data, scales
        self.pack_stored = kernel("pack_stored", c_int32, address, count, count, address, address)
        self._select = declare("select", c_char_p, restype=c_int)
        self._selected = declare("selected", restype=c_char_p)
        self._set_num_threads = declare("set_num_threads", c_int)

    @property
    def instruction_set(self) -> str:
        """Which build of the kernels runs: ``avx512``, ``avxvnni``, ``avx2`` or ``generic``."""
        name: bytes = self._selected()
        return name.decode()

    def select(self, instruction_set: str) -> bool:
        """Run another build from now on; false if this processor cannot."""
        return bool(self._select(instruction_set.encode()))

    def set_num_threads(self, count: int) -> None:
        """How many threads compute, the caller's included; waits until no kernel uses them."""
        self._set_num_threads(count)


def _is_structure(own: object) -> bool:
    return isinstance(own, type) and issubclass(own, ctypes.Structure)


@functools.cache
def load_library() -> Library | None:
    """The kernels, or ``None`` and one warning if there are none or they are from other sources."""
    try:
        return Library()
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"the compiled CPU kernels cannot be used ({error}); PyTorch's operators are used,"
            " which decode more slowly. Install a C++ compiler (g++ or clang++) and install"
            " twostroke again",
            stacklevel=2,
        )
        return None
