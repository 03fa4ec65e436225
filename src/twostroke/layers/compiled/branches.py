"""Decoder layers as the compiled pass runs them, put together from the kinds of their branches."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twostroke.kernels.calls import LinearCall, NormCall
from twostroke.kernels.pass_calls import (
    HEADS,
    MLP,
    AdditionCall,
    HeadsCall,
    LatentCall,
    LayerCall,
    LayerInputCall,
    MixerCall,
    MlpCall,
)
from twostroke.layers.compiled.recurrent import CompiledRecurrent
from twostroke.layers.norm import Norm, UnitNorm
from twostroke.layers.rotary import RotaryTable
from twostroke.model_spec.rope import RopeSpec

RotaryTables = Mapping[tuple[RopeSpec, int], RotaryTable]
_PARTS = (MixerCall, MlpCall, LayerInputCall)  # in their order


@dataclass(frozen=True, slots=True)
class CompiledBranch:
    """One branch of a layer as the kernels run it; its owner keeps alive what it points to.

    Attributes:
        attention: What the call of an attention points to, without the angles.
        rope: How, and how many elements of each head, that rotates.
        recurrent: What the call of a recurrent layer points to.
        beside: Another that reads the same hidden state.
    """

    call: MixerCall | MlpCall | LayerInputCall
    attention: HeadsCall | LatentCall | None = None
    rope: tuple[RopeSpec, int] | None = None
    recurrent: CompiledRecurrent | None = None
    beside: CompiledBranch | None = None


def norm_call(norm: Norm | UnitNorm | None) -> NormCall | None:
    """The kernel's norm, of no weight where there is none; ``None`` if PyTorch computes it."""
    return NormCall() if norm is None else norm.kernel_call


def compile_attention(
    norm: NormCall | None,
    qkv: LinearCall | None,
    output: AdditionCall | None,
    heads: HeadsCall | None,
    rope: tuple[RopeSpec, int] | None,
) -> CompiledBranch | None:
    """A branch of attention; ``None`` if PyTorch computes some part of it."""
    if norm is None or qkv is None or output is None or heads is None:
        return None
    own = ctypes.addressof(heads)
    call = MixerCall(norm=norm, input=qkv, output=output, own=own, kind=HEADS)
    call.wide, call.narrow = qkv.outputs, output.linear.inputs
    return CompiledBranch(call, attention=heads, rope=rope)


def compile_recurrent(
    norm: NormCall | None,
    linear: LinearCall | None,
    output: AdditionCall | None,
    own: CompiledRecurrent | None,
    rates: LinearCall | None = None,
) -> CompiledBranch | None:
    """A recurrent branch; ``None`` if PyTorch computes some part of it."""
    if norm is None or linear is None or output is None or own is None:
        return None
    call = MixerCall(norm=norm, input=linear, output=output, kind=own.kind)
    call.own = ctypes.addressof(own.call)
    call.wide, call.narrow = linear.outputs, output.linear.inputs
    if rates is not None:
        call.rates = ctypes.pointer(rates)
    return CompiledBranch(call, recurrent=own)


def compile_layer(layer: Sequence[CompiledBranch | None], rotary: RotaryTables) -> LayerCall | None:
    """What mixes tokens and then an MLP or experts, one of them, or both of the same state.

    Two may mix them, of the same state, too. Then what an embedding of the layer's own says.
    ``None`` for anything else.
    """
    branches = [branch for branch in layer if branch is not None]
    if not branches or len(branches) < len(layer):
        return None
    call, beside = LayerCall(), branches[0].beside
    if beside is not None and isinstance(beside.call, MixerCall):
        if not isinstance(branches[0].call, MixerCall):
            return None
        call.other = ctypes.pointer(branches[0].call)
        branches[0] = beside
    call.is_parallel = branches[0].beside is not None
    branches = [own for branch in branches for own in (branch, branch.beside) if own is not None]
    order = [_PARTS.index(type(branch.call)) for branch in branches]
    if any(first >= second for first, second in pairwise(order)):
        return None
    for branch in branches:
        if isinstance(branch.call, MlpCall):
            call.mlp = branch.call
        elif isinstance(branch.call, MixerCall):
            call.mixer = branch.call
        else:
            call.input = ctypes.pointer(branch.call)
        if (own := branch.attention) is not None and branch.rope is not None:
            table = rotary[branch.rope]
            own.cos, own.sin = table.cos.data_ptr(), table.sin.data_ptr()
            own.rotated = branch.rope[1]
    # What the MLP reads lies where the mixer would norm or scale what it adds.
    is_plain = not call.mixer.output.norm.weight and call.mixer.output.scale == 1.0
    if call.is_parallel and not (is_plain and call.mlp.kind == MLP):
        return None
    return call
