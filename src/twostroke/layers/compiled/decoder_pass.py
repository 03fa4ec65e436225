"""All decoder layers of a step in one call of the compiled kernels: bfloat16 activations on a CPU.

The same kernels, in the same order and with the same roundings, as the layers call one by one; what
is saved is the way through Python between them, which takes most of a small model's step, and the
tensors made on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from twostroke.kernels.calls import LowRankCall
from twostroke.kernels.library import Library
from twostroke.kernels.pass_calls import COMPONENTS, GroupCall, LayerCall, PassCall
from twostroke.layers.attention.base import KernelCache, LayerCache
from twostroke.layers.compiled.branches import CompiledBranch, RotaryTables, compile_layer
from twostroke.layers.compiled.recurrent import CompiledRecurrent
from twostroke.layers.pages import fresh_tensor
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, write_further_copies
from twostroke.observability.profile import ATTENTION, GEMM, LAYERS, Profiler

# Where a step has at least half as many tokens for two turns of every thread, each thread takes
# about this many at a time from one layer's mixer to the next's: few enough to stay in its
# cache, enough to be worth the weights.
PART_TOKENS = 128
# Otherwise all threads share each product, and this many tokens go through an MLP at once: enough
# for its products to run at full speed; gates and ups of 2,048 would need 22 MiB of a 350 M model's
# memory.
MLP_TOKENS = 512


# What an adapter may add to, in the kernels' order. Other layers' products are fused further, or
# bypass the layer.
ADAPTED_LINEARS = ("qkv", "output", "gate_up", "down")

# The components of a profile that the kernels' own ones belong to; ``LAYERS`` has the others.
_PROFILED = {"gemm": GEMM, "attention": ATTENTION}


def compile_layers(
    layers: Sequence[Sequence[CompiledBranch | None]],
    rotary: RotaryTables,
    eps: float,
    library: Library,
    profiler: Profiler,
) -> CompiledPass | None:
    """A pass through all layers, or ``None`` if the kernels cannot run some branch of them."""
    calls, recurrent = [], {}
    for index, layer in enumerate(layers):
        call = compile_layer(layer, rotary)
        if call is None:
            return None
        calls.append(call)
        for branch in layer:
            for own in (branch, branch and branch.beside):
                if own is not None and own.recurrent is not None:
                    recurrent[index] = own.recurrent
    return CompiledPass(calls, recurrent, (layers, rotary), eps, library, profiler)


class CompiledAdditions:
    """The table of what some adapters add to the layers of a pass; its weights are the owners'.

    Args:
        adapters: Each one's additions, by layer and by name, one of ``ADAPTED_LINEARS``.
        owners: What keeps alive what they point to.
    """

    def __init__(
        self,
        num_layers: int,
        adapters: Sequence[Mapping[tuple[int, str], LowRankCall]],
        owners: object,
    ) -> None:
        self._owners = owners
        self.num_adapters = len(adapters)
        self.calls = (LowRankCall * (num_layers * len(ADAPTED_LINEARS) * len(adapters)))()
        for index, own in enumerate(adapters):
            for (layer, name), call in own.items():
                place = layer * len(ADAPTED_LINEARS) + ADAPTED_LINEARS.index(name)
                self.calls[place * len(adapters) + index] = call


class CompiledPass:
    """Runs all layers of a step. One step at a time: it keeps the room for intermediate values.

    Args:
        layers: Without their caches.
        recurrent: What those that are recurrent compute with, by their indices.
        owners: What keeps alive what the layers point to.
        eps: Epsilon of the layers' norms.
    """

    def __init__(
        self,
        layers: Sequence[LayerCall],
        recurrent: Mapping[int, CompiledRecurrent],
        owners: object,
        eps: float,
        library: Library,
        profiler: Profiler,
    ) -> None:
        self._recurrent, self._owners = recurrent, owners
        self._library = library
        self._profiler = profiler
        self._caches: Mapping[int, LayerCache] | None = None
        self._kept: tuple[object, ...] = ()  # what the call of the latest pass points to
        self._rooms: tuple[Tensor, ...] = ()
        self._tokens = 0
        self._layers = (LayerCall * len(layers))(*layers)
        self._call = PassCall(
            layers=self._layers,
            num_layers=len(layers),
            hidden=_hidden_size(layers[0]),
            part_tokens=PART_TOKENS,
            mlp_tokens=MLP_TOKENS,
            eps=eps,
        )
        mlps = [own.mlp for own in self._layers]
        inputs = [own.input[0] for own in self._layers if own.input]
        self._call.mlp_wide = max(
            *(own.gate_up.outputs for own in mlps), *(2 * own.gate.outputs for own in inputs), 0
        )
        self._call.mlp_narrow = max(
            *(own.down.linear.inputs for own in mlps), *(own.gate.outputs for own in inputs), 0
        )
        # Only then do the kernels read the clock between them.
        self._seconds = (ctypes.c_double * len(COMPONENTS))() if profiler.enabled else None
        if self._seconds is not None:
            self._call.seconds = self._seconds

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        cache: KernelCache,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
        layer_inputs: Tensor | None = None,
    ) -> Tensor:
        """Take ``x`` [tokens, hidden], which is overwritten, through all layers.

        ``layer_inputs``, as in ``PassInputs``, are overwritten, too. Returns ``rows`` of ``x``, by
        default all.
        """
        call = self.prepare(x, positions, cache, rows)
        if layer_inputs is not None:
            call.layer_inputs = layer_inputs.data_ptr()
            call.layer_inputs_size = layer_inputs.stride(0)
        if self._recurrent:
            self._attach_states(states)
        self._library.layers(ctypes.byref(call))
        write_further_copies(states, self._recurrent)
        if self._seconds is not None:
            self._credit(self._seconds)
        return x[: call.num_kept]

    @contextmanager
    def adding(self, additions: CompiledAdditions, owners: Tensor) -> Iterator[None]:
        """Add what adapters do in the pass that is run inside.

        Args:
            owners: int64 ``[tokens]``: each token's adapter, or -1.
        """
        own = owners.to(torch.int32)  # the kernels overwrite it
        call = self._call
        call.additions, call.num_adapters = additions.calls, additions.num_adapters
        call.owners = own.data_ptr()
        try:
            yield
        finally:
            call.additions, call.num_adapters, call.owners = None, 0, None

    def prepare(
        self, x: Tensor, positions: Tensor, cache: KernelCache, rows: Tensor | None
    ) -> PassCall:
        """The call of such a pass; it points to the arguments, and is valid until the next one.

        States of recurrent layers are not in it.
        """
        self._attach_caches(cache.layers)
        tokens = len(x)
        self._make_room(tokens)
        call = self._call
        call.tokens, call.x = tokens, x.data_ptr()
        call.positions = positions.data_ptr()
        call.kept, call.num_kept = (None, tokens) if rows is None else (rows.data_ptr(), len(rows))
        call.groups = (GroupCall * len(cache.groups))(
            *(GroupCall(group.call, group.slots.data_ptr()) for group in cache.groups)
        )
        return call

    def _credit(self, seconds: ctypes.Array[ctypes.c_double]) -> None:
        for index, name in enumerate(COMPONENTS):
            self._profiler.credit(_PROFILED.get(name, LAYERS), seconds[index])
            seconds[index] = 0.0

    def _attach_caches(self, caches: Mapping[int, LayerCache]) -> None:
        if caches is self._caches:
            return
        self._caches = caches
        for index, cache in caches.items():
            if index < len(self._layers):  # a draft ends after the first few
                layer = self._layers[index]
                layer.keys, layer.values = cache.keys.data_ptr(), cache.values.data_ptr()
                layer.window, layer.group = cache.window, cache.group

    def _attach_states(self, states: LayerStates) -> None:
        storages = [states.storage(layer) for layer in self._recurrent]
        for own, storage in zip(self._recurrent.values(), storages, strict=True):
            own.attach(storage)
        self._kept = states.table, storages
        self._call.segments, self._call.num_segments = states.table.data_ptr(), len(states.table)

    def _make_room(self, tokens: int) -> None:
        """Room for the step's intermediate values, kept between steps.

        Memory that is given back costs a page fault for each 4 KiB when it is used again.
        """
        if tokens <= self._tokens:
            return
        call, in_mlp = self._call, min(tokens, MLP_TOKENS)
        mixers = [[own.mixer, *([own.other[0]] if own.other else [])] for own in self._layers]
        rates = [mixer.rates[0].outputs for own in mixers for mixer in own if mixer.rates]
        mixed_wide = max(sum(mixer.wide for mixer in own) for own in mixers)
        mixed_narrow = max(sum(mixer.narrow for mixer in own) for own in mixers)
        normed = tokens * call.hidden
        wide = max(tokens * mixed_wide, in_mlp * call.mlp_wide)
        narrow = max(tokens * mixed_narrow, in_mlp * call.mlp_narrow)
        beside = normed if any(own.mlp.beside for own in self._layers) else 0
        sizes = normed, wide, narrow, beside, beside
        self._rooms = (
            *(fresh_tensor([size], torch.bfloat16) for size in sizes),
            fresh_tensor([tokens * max(rates, default=0)], torch.float32),
        )
        call.normed, call.wide, call.narrow, call.beside, call.routed, call.rates = (
            room.data_ptr() for room in self._rooms
        )
        self._tokens = tokens  # last: an allocation that fails leaves the room that there was


def _hidden_size(layer: LayerCall) -> int:
    """Elements of a hidden state; some layers have only one of their halves."""
    if layer.mlp.experts:
        return int(layer.mlp.experts[0].hidden)
    return int(layer.mixer.output.linear.outputs or layer.mlp.down.linear.outputs)
