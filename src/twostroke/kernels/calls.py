"""The compiled kernels' arguments, field by field as ``cpp/calls.hpp`` declares them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from typing import ClassVar

SEGMENT_BYTES = 32  # of ``Segment``: four 64-bit integers


class LinearCall(ctypes.Structure):
    """Arguments of one linear layer, see ``LinearCall`` in ``cpp/calls.hpp``."""

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
        ("factors", c_void_p),
    ]


class AttentionCall(ctypes.Structure):
    """Arguments of one layer's attention, see ``AttentionCall`` in ``cpp/calls.hpp``."""

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
    """A norm of rows, see ``NormCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [("weight", c_void_p), ("kind", c_int32), ("factor", c_float)]


class ExpertCall(ctypes.Structure):
    """One expert's weights, see ``ExpertCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [("gate_up", LinearCall), ("down", LinearCall)]


class RoutingCall(ctypes.Structure):
    """How experts are chosen, see ``RoutingCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [
        ("correction", c_void_p),
        ("factors", c_void_p),
        ("experts", c_int64),
        ("per_token", c_int64),
        ("groups", c_int64),
        ("chosen_groups", c_int64),
        ("scale", c_float),
        ("sigmoid", c_int32),
        ("best_two", c_int32),
        ("normalized", c_int32),
        ("scales_inputs", c_int32),
    ]


class ExpertsCall(ctypes.Structure):
    """Arguments of a layer's experts, see ``ExpertsCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("routed", c_void_p),
        ("onto", c_void_p),
        ("out", c_void_p),
        ("tokens", c_int64),
        ("hidden", c_int64),
        ("experts", POINTER(ExpertCall)),
        ("shared", POINTER(ExpertCall)),
        ("shared_gate", POINTER(LinearCall)),
        ("narrow_down", POINTER(LinearCall)),
        ("narrow_up", POINTER(LinearCall)),
        ("router", LinearCall),
        ("routing", RoutingCall),
        ("scale", c_float),
        ("activation", c_int32),
    ]


class LowRankCall(ctypes.Structure):
    """What an adapter adds to a linear layer, see ``LowRankCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [("down", LinearCall), ("up", LinearCall), ("scales", c_void_p)]


class ConvolutionCall(ctypes.Structure):
    """A short convolution, and a layer's states, see ``ConvolutionCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [
        ("segments", c_void_p),
        ("num_segments", c_int64),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("taps", c_void_p),
        ("bias", c_void_p),
        ("before", c_void_p),
        ("out", c_void_p),
        ("channels", c_int64),
        ("kernel", c_int64),
    ]


class MatrixCall(ctypes.Structure):
    """What layers with matrices as states share, see ``MatrixCall`` in ``cpp/calls.hpp``."""

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
    """Arguments of the gated delta rule, see ``DeltaCall`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [("matrix", MatrixCall), ("gates", c_void_p)]


class Mamba2Call(ctypes.Structure):
    """Arguments of a layer of Mamba-2, see ``Mamba2Call`` in ``cpp/calls.hpp``."""

    _fields_: ClassVar = [
        ("matrix", MatrixCall),
        ("steps", c_void_p),
        ("steps_stride", c_int64),
        ("skip", c_void_p),
        ("norm_groups", c_int64),
        ("least_step", c_float),
    ]
