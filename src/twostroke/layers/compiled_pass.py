"""All decoder layers of a step in one call of the compiled kernels: bfloat16 activations on a CPU.

The same kernels, in the same order and with the same roundings, as the layers call one by one; what
is saved is the way through Python between them, which takes most of a small model's step, and the
tensors made on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.library import COMPONENTS, LayerCall, Library, PassCall
from twostroke.layers.attention.compiled import CompiledAttention, LayerCache
from twostroke.layers.linear import PackedLinear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.pages import fresh_tensor
from twostroke.layers.rotary import RotaryTable
from twostroke.observability.profile import ATTENTION, GEMM, LAYERS, Profiler

# Where a step has at least half as many tokens for two turns of every thread, each thread takes
# about so many at a time from one layer's attention to the next's: few enough that they stay in its
# cache, enough to be worth the weights.
PART_TOKENS = 128
# Otherwise all threads share each product, and so many tokens go through an MLP at once. Enough for
# its products to run at full speed; gates and ups of 2,048 would need 22 MiB of a 350 M model's
# memory.
MLP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One decoder layer; ``qk_norm`` has a weight per head, ``[heads + kv_heads, head_dim]``."""

    input_norm: RMSNorm
    mlp_norm: RMSNorm
    qk_norm: RMSNorm | None
    qkv: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear


class CompiledPass:
    """Runs all layers of a step. One step at a time: it keeps the room for intermediate values."""

    def __init__(self, parts: Sequence[LayerParts], rotary: RotaryTable, library: Library) -> None:
        self._parts = parts  # keeps alive what the call points to
        self._rotary = rotary
        self._library = library
        self._caches: list[LayerCache] | None = None
        self._rooms: tuple[Tensor, ...] = ()
        self._tokens = 0
        self._layers = (LayerCall * len(parts))(*map(_layer_call, parts))
        first = parts[0]
        self._call = PassCall(
            layers=self._layers,
            num_layers=len(parts),
            hidden=first.qkv.packed.inputs,
            part_tokens=PART_TOKENS,
            mlp_tokens=MLP_TOKENS,
            cos=rotary.cos.data_ptr(),
            sin=rotary.sin.data_ptr(),
            eps=first.input_norm.eps,
        )

    def instrument(self, profiler: Profiler) -> None:
        """From now on the kernels read the clock between them, and the profiler is told."""
        seconds = self._call.seconds = (ctypes.c_double * len(COMPONENTS))()
        launch = self._launch

        def timed() -> None:
            launch()
            for index, name in enumerate(COMPONENTS):
                profiler.credit(
                    {"gemm": GEMM, "attention": ATTENTION}.get(name, LAYERS), seconds[index]
                )
                seconds[index] = 0.0

        self._launch = timed  # type: ignore[method-assign]

    def __call__(
        self, x: Tensor, positions: Tensor, attention: CompiledAttention, rows: Tensor | None = None
    ) -> Tensor:
        """Take ``x`` [tokens, hidden], which is overwritten, through all layers; returns ``rows``
        of it.
        """
        self._attach(attention.caches)
        tokens = len(x)
        self._make_room(tokens)
        call = self._call
        call.tokens, call.x = tokens, x.data_ptr()
        call.positions, call.slots = positions.data_ptr(), attention.metadata.slots.data_ptr()
        call.kept, call.num_kept = (None, tokens) if rows is None else (rows.data_ptr(), len(rows))
        call.attention = attention.call
        self._launch()
        return x[: call.num_kept]

    def _launch(self) -> None:
        self._library.layers(ctypes.byref(self._call))

    def _attach(self, caches: list[LayerCache]) -> None:
        if caches is self._caches:
            return
        self._caches = caches
        for layer, cache in zip(self._layers, caches):
            layer.keys, layer.values, layer.window = (
                cache.keys.data_ptr(),
                cache.values.data_ptr(),
                cache.window,
            )

    def _make_room(self, tokens: int) -> None:
        """Kept between steps: memory that is given back costs a page fault for each 4 KiB when it
        is used again.
        """
        if tokens <= self._tokens:
            return
        first, in_mlp = self._parts[0], min(tokens, MLP_TOKENS)
        sizes = (
            tokens * first.qkv.packed.inputs,
            max(tokens * first.qkv.packed.outputs, in_mlp * first.gate_up.packed.outputs),
            max(tokens * first.output.packed.inputs, in_mlp * first.down.packed.inputs),
        )
        self._rooms = tuple(fresh_tensor([size], torch.bfloat16) for size in sizes)
        self._call.normed, self._call.wide, self._call.narrow = (
            room.data_ptr() for room in self._rooms
        )
        self._tokens = tokens  # last: an allocation that fails leaves the room that there was


def _layer_call(parts: LayerParts) -> LayerCall:
    return LayerCall(
        input_norm=parts.input_norm.weight.data_ptr(),
        mlp_norm=parts.mlp_norm.weight.data_ptr(),
        qk_norm=None if parts.qk_norm is None else parts.qk_norm.weight.data_ptr(),
        qkv=parts.qkv.call,
        output=parts.output.call,
        gate_up=parts.gate_up.call,
        down=parts.down.call,
    )
