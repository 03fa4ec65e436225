"""Loads the compiled kernels (``cpp/``) and declares their C interface.

No torch here: a call gets addresses and returns nothing.

The build of the package compiles them (``hatch_build.py``). Without them, or on a processor that
they do not support, everything runs on PyTorch's own operators.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

# In a folder that is no package: the library is no Python module.
LIBRARY_PATH = Path(__file__).parent / "cpp" / "kernels.so"

# The same constants are in ``cpp/kernels.hpp``.
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
}
# ``Activation``, by their names.
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_pytorch_tanh": 2, "clamped_swiglu": 3}
MAX_HEAD_DIM = 576
MAX_KERNEL = 8  # Tokens that a short convolution sees.
SEGMENT_BYTES = 32  # of ``Segment``: four 64-bit integers
COMPONENTS = ("norm", "gemm", "place", "attention", "activation")  # ``Component``, in order


class LinearCall(ctypes.Structure):
    """Arguments of one linear layer, see ``LinearCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("format", c_int32),
        ("float_out", c_int32),
        ("parts", c_void_p),
        ("num_parts", c_int64),
        ("out_stride", c_int64),
    ]


class AttentionCall(ctypes.Structure):
    """Arguments of one layer's attention, see ``AttentionCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("query", c_void_p),
        ("query_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("block_table", c_void_p),
        ("table_stride", c_int64),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("out", c_void_p),
        ("sinks", c_void_p),
        ("num_requests", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("value_dim", c_int64),
        ("value_width", c_int64),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("window", c_int64),
        ("chunked", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("is_float", c_int32),
        ("cache_format", c_int32),
    ]


class NormCall(ctypes.Structure):
    """A norm of rows, see ``NormCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [("weight", c_void_p), ("kind", c_int32)]


class AdditionCall(ctypes.Structure):
    """How a branch ends, see ``AdditionCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [("linear", LinearCall), ("norm", NormCall), ("scale", c_float)]


class AttentionBranchCall(ctypes.Structure):
    """One layer's attention, see ``AttentionBranchCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("heads_norm", NormCall),
        ("qkv", LinearCall),
        ("output", AdditionCall),
        ("sinks", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotated", c_int64),
        ("whole_heads", c_int32),
    ]


class ExpertCall(ctypes.Structure):
    """One expert's weights, see ``ExpertCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [("gate_up", LinearCall), ("down", LinearCall)]


class RoutingCall(ctypes.Structure):
    """How experts are chosen, see ``RoutingCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("correction", c_void_p),
        ("experts", c_int64),
        ("per_token", c_int64),
        ("groups", c_int64),
        ("chosen_groups", c_int64),
        ("scale", c_float),
        ("sigmoid", c_int32),
        ("best_two", c_int32),
        ("normalized", c_int32),
    ]


class ExpertsCall(ctypes.Structure):
    """Arguments of a layer's experts, see ``ExpertsCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("onto", c_void_p),
        ("out", c_void_p),
        ("tokens", c_int64),
        ("hidden", c_int64),
        ("experts", POINTER(ExpertCall)),
        ("shared", POINTER(ExpertCall)),
        ("shared_gate", POINTER(LinearCall)),
        ("router", LinearCall),
        ("routing", RoutingCall),
        ("scale", c_float),
        ("activation", c_int32),
    ]


class MlpCall(ctypes.Structure):
    """One layer's MLP or experts, see ``MlpCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("gate_up", LinearCall),
        ("down", AdditionCall),
        ("activation", c_int32),
        ("experts", POINTER(ExpertsCall)),
    ]


class LayerCall(ctypes.Structure):
    """One decoder layer's weights and cache, see ``LayerCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("attention", AttentionBranchCall),
        ("mlp", MlpCall),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("is_parallel", c_int32),
    ]


class LowRankCall(ctypes.Structure):
    """What an adapter adds to a linear layer, see ``LowRankCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [("down", LinearCall), ("up", LinearCall), ("scales", c_void_p)]


class PassCall(ctypes.Structure):
    """Arguments of one pass through all layers, see ``PassCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("layers", POINTER(LayerCall)),
        ("num_layers", c_int64),
        ("tokens", c_int64),
        ("num_kept", c_int64),
        ("hidden", c_int64),
        ("part_tokens", c_int64),
        ("mlp_tokens", c_int64),
        ("x", c_void_p),
        ("normed", c_void_p),
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("kept", c_void_p),
        ("seconds", POINTER(c_double)),
        ("attention", AttentionCall),
        ("additions", POINTER(LowRankCall)),
        ("num_adapters", c_int64),
        ("owners", c_void_p),
        ("eps", c_float),
    ]


class DraftCall(ctypes.Structure):
    """Arguments of drafting, see ``DraftCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("pass_call", PassCall),
        ("head", LinearCall),
        ("norm", c_void_p),
        ("embedding", c_void_p),
        ("tokens", c_void_p),
        ("lengths", c_void_p),
        ("num_requests", c_int64),
        ("drafts", c_void_p),
        ("scratch", c_void_p),
        ("logits", c_void_p),
        ("highest", c_void_p),
        ("is_packed", c_int32),
    ]


class ConvolutionCall(ctypes.Structure):
    """A short convolution, and a layer's states, see ``ConvolutionCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("segments", c_void_p),
        ("num_segments", c_int64),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("taps", c_void_p),
        ("bias", c_void_p),
        ("before", c_void_p),
        ("channels", c_int64),
        ("kernel", c_int64),
    ]


class MatrixCall(ctypes.Structure):
    """What layers with matrices as states share, see ``MatrixCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("convolution", ConvolutionCall),
        ("states", c_void_p),
        ("gate", c_void_p),
        ("gate_stride", c_int64),
        ("rates", c_void_p),
        ("bias", c_void_p),
        ("norm", c_void_p),
        ("out", c_void_p),
        ("heads", c_int64),
        ("groups", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("eps", c_float),
        ("bf16_states", c_int32),
    ]


class DeltaCall(ctypes.Structure):
    """Arguments of the gated delta rule, see ``DeltaCall`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [("matrix", MatrixCall), ("gates", c_void_p)]


class Mamba2Call(ctypes.Structure):
    """Arguments of a layer of Mamba-2, see ``Mamba2Call`` in ``cpp/kernels.hpp``."""

    _fields_: ClassVar = [
        ("matrix", MatrixCall),
        ("steps", c_void_p),
        ("steps_stride", c_int64),
        ("skip", c_void_p),
        ("norm_groups", c_int64),
        ("least_step", c_float),
    ]


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
        calls: list[type[ctypes.Structure]] = [LinearCall, AttentionCall, NormCall, LayerCall]
        calls += [PassCall, DraftCall, ExpertCall, RoutingCall, ExpertsCall]
        calls += [ConvolutionCall, MatrixCall, DeltaCall, Mamba2Call, LowRankCall]
        if layout() != SEGMENT_BYTES + sum(map(ctypes.sizeof, calls)):
            raise OSError(f"{path} was built from other sources")
        find = declare("kernel", c_char_p, restype=c_void_p)

        def kernel(name: str, *argtypes: type) -> Callable[..., Any]:
            address = find(name.encode())
            if address is None:
                raise AttributeError(f"{path} has no kernel {name}")
            return ctypes.CFUNCTYPE(None, *argtypes)(address)

        address, count = c_void_p, c_int64
        self.linear = kernel("linear", POINTER(LinearCall))
        self.attention = kernel("attention", POINTER(AttentionCall))
        self.layers = kernel("decoder_layers", POINTER(PassCall))
        self.draft = kernel("draft", POINTER(DraftCall))
        # norm, weights, x, out, rows, size, eps
        self.norm = kernel(
            "norm_rows", POINTER(NormCall), count, address, address, count, count, c_float
        )
        self.experts = kernel("experts", POINTER(ExpertsCall))
        # call, out
        self.short_convolution = kernel("short_convolution", POINTER(ConvolutionCall), address)
        self.gated_delta = kernel("gated_delta", POINTER(DeltaCall))
        self.mamba2 = kernel("mamba2", POINTER(Mamba2Call))
        # qk, stride, tokens, heads, head_dim, positions, cos, sin
        self.rotate = kernel(
            "rotate", address, count, count, count, count, address, address, address
        )
        # gate_up, out, rows, size, activation
        self.gated_mul = kernel("gated_mul", address, address, count, count, c_int32)
        # x, highest, index, rows, size
        self.peaks = kernel("peaks", address, address, address, count, count)
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
