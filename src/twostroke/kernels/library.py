"""Loads the compiled kernels (``cpp/``) and declares their C interface. No torch: addresses go in,
nothing comes out.

The build of the package compiles them (``hatch_build.py``). Without them, or on a processor that
they do not support, everything runs on PyTorch's own operators.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar

LIBRARY_PATH = (
    Path(__file__).parent / "cpp" / "kernels.so"
)  # outside any package: it is no Python module

LANES = 16  # Outputs in a block of packed weights.
GROUP = 32  # Inputs that share a scale in 4-bit weights.
FORMATS = {"bfloat16": 0, "int8": 1, "int4": 2}
MAX_HEAD_DIM = 256
COMPONENTS = (
    "norm",
    "gemm",
    "place",
    "attention",
    "activation",
)  # in the order of ``Component`` in ``cpp/kernels.h``


class LinearCall(ctypes.Structure):
    """Arguments of one linear layer, see ``Linear`` in ``cpp/kernels.h``."""

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
    ]


class AttentionCall(ctypes.Structure):
    """Arguments of one layer's attention, see ``Attention`` in ``cpp/kernels.h``."""

    _fields_: ClassVar = [
        ("query", c_void_p),
        ("query_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("block_table", c_void_p),
        ("table_stride", c_int64),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("requests", c_void_p),
        ("out", c_void_p),
        ("num_requests", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("is_float", c_int32),
    ]


class LayerCall(ctypes.Structure):
    """What one decoder layer owns, see ``Layer`` in ``cpp/kernels.h``."""

    _fields_: ClassVar = [
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qk_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("qkv", LinearCall),
        ("output", LinearCall),
        ("gate_up", LinearCall),
        ("down", LinearCall),
    ]


class PassCall(ctypes.Structure):
    """Arguments of one pass through all layers, see ``Pass`` in ``cpp/kernels.h``."""

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
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("seconds", POINTER(c_double)),
        ("attention", AttentionCall),
        ("eps", c_float),
    ]


class Library:
    """The compiled kernels. Calls release the GIL; of several threads inside, one has the workers,
    the rest work alone.

    Raises:
        OSError: The file cannot be loaded, or was built from other sources.
        AttributeError: It lacks a function.
    """

    def __init__(self, path: Path = LIBRARY_PATH) -> None:
        loaded = ctypes.CDLL(str(path))
        layout = loaded.twostroke_layout
        layout.restype = c_int64
        if layout() != sum(map(ctypes.sizeof, (LinearCall, AttentionCall, LayerCall, PassCall))):
            raise OSError(f"{path} was built from other sources")
        self.linear = loaded.twostroke_linear
        self.linear.argtypes, self.linear.restype = [POINTER(LinearCall)], None
        self.attention = loaded.twostroke_attention
        self.attention.argtypes, self.attention.restype = [POINTER(AttentionCall)], None
        self.rms_norm = loaded.twostroke_rms_norm
        self.rms_norm.argtypes, self.rms_norm.restype = (
            [c_void_p] * 3 + [c_int64] * 2 + [c_float],
            None,
        )
        self.rotate = loaded.twostroke_rotate
        self.rotate.argtypes, self.rotate.restype = (
            [c_void_p] + [c_int64] * 4 + [c_void_p] * 3,
            None,
        )
        self.silu_mul = loaded.twostroke_silu_mul
        self.silu_mul.argtypes, self.silu_mul.restype = [c_void_p] * 2 + [c_int64] * 2, None
        self.peaks = loaded.twostroke_peaks
        self.peaks.argtypes, self.peaks.restype = [c_void_p] * 3 + [c_int64] * 2, None
        self.layers = loaded.twostroke_layers
        self.layers.argtypes, self.layers.restype = [POINTER(PassCall)], None
        self._select = loaded.twostroke_select
        self._select.argtypes = [c_char_p]
        self._selected = loaded.twostroke_selected
        self._selected.restype = c_char_p
        self._set_num_threads = loaded.twostroke_set_num_threads

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
    """The kernels, or ``None`` with one warning where the package was built without, or from other
    sources.
    """
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
