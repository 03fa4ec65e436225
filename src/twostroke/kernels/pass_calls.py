"""The arguments of a pass through all layers, field by field as in ``cpp/pass_calls.hpp``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from typing import ClassVar

from twostroke.kernels.calls import (
    AttentionCall,
    ExpertsCall,
    LinearCall,
    LowRankCall,
    NormCall,
)

COMPONENTS = ("norm", "gemm", "place", "attention", "activation")  # ``Component``, in order
# ``Mixer``, and ``FeedForward``.
NO_MIXER, HEADS, GATED_DELTA, MAMBA2, CONVOLUTION, LATENTS = range(6)
NO_FEED_FORWARD, MLP, EXPERTS = range(3)


class AdditionCall(ctypes.Structure):
    """How a branch ends, see ``AdditionCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [("linear", LinearCall), ("norm", NormCall), ("scale", c_float)]


class MixerCall(ctypes.Structure):
    """A layer's first half, see ``MixerCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("input", LinearCall),
        ("output", AdditionCall),
        ("rates", POINTER(LinearCall)),
        ("own", c_void_p),
        ("wide", c_int64),
        ("narrow", c_int64),
        ("kind", c_int32),
    ]


class HeadsCall(ctypes.Structure):
    """A layer's attention, see ``HeadsCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("value_norm", NormCall),
        ("sinks", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotated", c_int64),
        ("growth", c_float),
        ("growth_every", c_float),
        ("whole_heads", c_int32),
        ("is_gated", c_int32),
        ("keys_as_values", c_int32),
        ("shares_cache", c_int32),
    ]


class LatentCall(ctypes.Structure):
    """A layer's latent attention, see ``LatentCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("latent_norm", NormCall),
        ("query_norm", NormCall),
        ("query_down", LinearCall),
        ("query", LinearCall),
        ("keys", POINTER(LinearCall)),
        ("values", POINTER(LinearCall)),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotated", c_int64),
        ("eps", c_float),
    ]


class BesideCall(ctypes.Structure):
    """Norms of experts beside an MLP, see ``BesideCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("router_norm", NormCall),
        ("mlp_norm", NormCall),
        ("experts_norm", NormCall),
        ("added_norm", NormCall),
    ]


class MlpCall(ctypes.Structure):
    """A layer's second half, see ``MlpCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("norm", NormCall),
        ("gate_up", LinearCall),
        ("down", AdditionCall),
        ("experts", POINTER(ExpertsCall)),
        ("beside", POINTER(BesideCall)),
        ("activation", c_int32),
        ("kind", c_int32),
    ]


class LayerInputCall(ctypes.Structure):
    """What a layer does at last, see ``LayerInputCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("gate", LinearCall),
        ("output", AdditionCall),
        ("first", c_int64),
        ("scale", c_float),
        ("activation", c_int32),
    ]


class LayerCall(ctypes.Structure):
    """One decoder layer's weights and cache, see ``LayerCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("mixer", MixerCall),
        ("mlp", MlpCall),
        ("other", POINTER(MixerCall)),
        ("input", POINTER(LayerInputCall)),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("group", c_int64),
        ("is_parallel", c_int32),
    ]


class GroupCall(ctypes.Structure):
    """Layers that share a block table, see ``GroupCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [("attention", AttentionCall), ("slots", c_void_p)]


class PassCall(ctypes.Structure):
    """Arguments of one pass through all layers, see ``PassCall`` in ``cpp/pass_calls.hpp``."""

    _fields_: ClassVar = [
        ("layers", POINTER(LayerCall)),
        ("num_layers", c_int64),
        ("tokens", c_int64),
        ("num_kept", c_int64),
        ("hidden", c_int64),
        ("part_tokens", c_int64),
        ("mlp_tokens", c_int64),
        ("mlp_wide", c_int64),
        ("mlp_narrow", c_int64),
        ("x", c_void_p),
        ("normed", c_void_p),
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("rates", c_void_p),
        ("beside", c_void_p),
        ("routed", c_void_p),
        ("positions", c_void_p),
        ("kept", c_void_p),
        ("seconds", POINTER(c_double)),
        ("layer_inputs", c_void_p),
        ("layer_inputs_size", c_int64),
        ("groups", POINTER(GroupCall)),
        ("segments", c_void_p),
        ("num_segments", c_int64),
        ("additions", POINTER(LowRankCall)),
        ("num_adapters", c_int64),
        ("owners", c_void_p),
        ("eps", c_float),
    ]


class DraftCall(ctypes.Structure):
    """Arguments of drafting, see ``DraftCall`` in ``cpp/pass_calls.hpp``."""

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
