"""All decoder layers of a step in one call of the compiled kernels: bfloat16 activations on a CPU.

The same kernels, in the same order and with the same roundings, as the layers call one by one; what
is saved is the way through Python between them, which takes most of a small model's step, and the
tensors made on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.library import (
    COMPONENTS,
    AttentionBranchCall,
    LayerCall,
    Library,
    LowRankCall,
    MlpCall,
    NormCall,
    PassCall,
)
from twostroke.layers.attention.base import KernelCache, LayerCache, LayerRun
from twostroke.layers.norm import Norm
from twostroke.layers.pages import fresh_tensor
from twostroke.layers.rotary import RotaryTable
from twostroke.model_spec.rope import RopeSpec
from twostroke.observability.profile import ATTENTION, GEMM, LAYERS, Profiler

# Where a step has at least half as many tokens for two turns of every thread, each thread takes
# about this many at a time from one layer's attention to the next's: few enough to stay in its
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


@dataclass(frozen=True, slots=True)
class CompiledBranch:
    """One branch of a layer as the kernels run it; its owner keeps alive what it points to.

    Attributes:
        call: Without the angles.
        rope: How, and how many elements of each head, it rotates.
        beside: Another that reads the same hidden state.
    """

    call: AttentionBranchCall | MlpCall
    rope: tuple[RopeSpec, int] | None = None
    beside: CompiledBranch | None = None


def norm_call(norm: Norm | None) -> NormCall | None:
    """The kernel's norm, of no weight where there is none; ``None`` if PyTorch computes it."""
    return NormCall() if norm is None else norm.kernel_call


def compile_layers(
    layers: Sequence[Sequence[CompiledBranch | None]],
    rotary: Mapping[tuple[RopeSpec, int], RotaryTable],
    eps: float,
    library: Library,
    profiler: Profiler,
) -> CompiledPass | None:
    """A pass through all layers, or ``None`` if the kernels cannot run some branch of them.

    They run layers of attention and an MLP or experts.
    """
    calls = []
    for layer in layers:
        call = _layer_call(layer, rotary)
        if call is None:
            return None
        calls.append(call)
    return CompiledPass(calls, (layers, rotary), eps, library, profiler)


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
        owners: What keeps alive what they point to.
        eps: Epsilon of the layers' norms.
    """

    def __init__(
        self,
        layers: Sequence[LayerCall],
        owners: object,
        eps: float,
        library: Library,
        profiler: Profiler,
    ) -> None:
        self._owners = owners
        self._library = library
        self._profiler = profiler
        self._caches: Sequence[LayerCache] | None = None
        self._rooms: tuple[Tensor, ...] = ()
        self._tokens = 0
        self._additions: ctypes.Array[LowRankCall] | None = None  # of the pass that is run
        self._layers = (LayerCall * len(layers))(*layers)
        self._call = PassCall(
            layers=self._layers,
            num_layers=len(layers),
            hidden=layers[0].attention.qkv.inputs,
            part_tokens=PART_TOKENS,
            mlp_tokens=MLP_TOKENS,
            eps=eps,
        )
        # Only then do the kernels read the clock between them.
        self._seconds = (ctypes.c_double * len(COMPONENTS))() if profiler.enabled else None
        if self._seconds is not None:
            self._call.seconds = self._seconds

    def __call__(
        self, x: Tensor, positions: Tensor, cache: KernelCache, rows: Tensor | None = None
    ) -> Tensor:
        """Take ``x`` [tokens, hidden], which is overwritten, through all layers.

        Returns ``rows`` of it, by default all.
        """
        call = self.prepare(x, positions, cache, rows)
        if cache.runs:
            self._run_in_turn(call, cache.runs)
        else:
            self._library.layers(ctypes.byref(call))
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
        self._additions = additions.calls
        call.owners = own.data_ptr()
        try:
            yield
        finally:
            call.additions, call.num_adapters, call.owners = None, 0, None
            self._additions = None

    def _run_in_turn(self, call: PassCall, runs: Sequence[LayerRun]) -> None:
        """A call for each run of layers; the tokens that are not kept go until the last."""
        kept, num_kept, first = call.kept, call.num_kept, 0
        per_layer = len(ADAPTED_LINEARS) * call.num_adapters
        call.kept, call.num_kept = None, call.tokens
        for run in runs:
            call.layers, call.num_layers = ctypes.pointer(self._layers[first]), run.num_layers
            call.attention, call.slots = run.call, run.slots.data_ptr()
            if self._additions is not None:  # not the field: what is read of it changes with it
                call.additions = ctypes.pointer(self._additions[first * per_layer])
            first += run.num_layers
            if first == len(self._layers):
                call.kept, call.num_kept = kept, num_kept
            self._library.layers(ctypes.byref(call))
        call.layers, call.num_layers = self._layers, len(self._layers)
        if self._additions is not None:
            call.additions = self._additions

    def prepare(
        self, x: Tensor, positions: Tensor, cache: KernelCache, rows: Tensor | None
    ) -> PassCall:
        """The call of such a pass; it points to the arguments, and is valid until the next one."""
        self._attach(cache.layers)
        tokens = len(x)
        self._make_room(tokens)
        call = self._call
        call.tokens, call.x = tokens, x.data_ptr()
        call.positions, call.slots = positions.data_ptr(), cache.slots.data_ptr()
        call.kept, call.num_kept = (None, tokens) if rows is None else (rows.data_ptr(), len(rows))
        call.attention = cache.call
        return call

    def _credit(self, seconds: ctypes.Array[ctypes.c_double]) -> None:
        for index, name in enumerate(COMPONENTS):
            self._profiler.credit(_PROFILED.get(name, LAYERS), seconds[index])
            seconds[index] = 0.0

    def _attach(self, caches: Sequence[LayerCache]) -> None:
        if caches is self._caches:
            return
        self._caches = caches
        for layer, cache in zip(self._layers, caches):
            layer.keys, layer.values = cache.keys.data_ptr(), cache.values.data_ptr()
            layer.window = cache.window

    def _make_room(self, tokens: int) -> None:
        """Room for the step's intermediate values, kept between steps.

        Memory that is given back costs a page fault for each 4 KiB when it is used again.
        """
        if tokens <= self._tokens:
            return
        in_mlp = min(tokens, MLP_TOKENS)
        attention = [layer.attention for layer in self._layers]
        mlps = [layer.mlp for layer in self._layers]
        sizes = (
            tokens * self._call.hidden,
            max(
                tokens * max(each.qkv.outputs for each in attention),
                in_mlp * max(each.gate_up.outputs for each in mlps),
            ),
            max(
                tokens * max(each.output.linear.inputs for each in attention),
                in_mlp * max(each.down.linear.inputs for each in mlps),
            ),
        )
        self._rooms = tuple(fresh_tensor([size], torch.bfloat16) for size in sizes)
        self._call.normed, self._call.wide, self._call.narrow = (
            room.data_ptr() for room in self._rooms
        )
        self._tokens = tokens  # last: an allocation that fails leaves the room that there was


def _layer_call(
    layer: Sequence[CompiledBranch | None],
    rotary: Mapping[tuple[RopeSpec, int], RotaryTable],
) -> LayerCall | None:
    """Attention and then an MLP, or both of the same state; ``None`` for anything else."""
    match layer:
        case [CompiledBranch(beside=CompiledBranch() as second) as first]:
            is_parallel = True
        case [CompiledBranch(beside=None) as first, CompiledBranch(beside=None) as second]:
            is_parallel = False
        case _:
            return None
    attention, mlp = first.call, second.call
    if not (isinstance(attention, AttentionBranchCall) and isinstance(mlp, MlpCall)):
        return None
    # What the MLP reads lies where attention would norm or scale what it adds.
    is_plain = not attention.output.norm.weight and attention.output.scale == 1.0
    if is_parallel and (mlp.experts or not is_plain):
        return None
    if first.rope is not None:
        table = rotary[first.rope]
        attention.cos, attention.sin = table.cos.data_ptr(), table.sin.data_ptr()
        attention.rotated = first.rope[1]
    return LayerCall(attention=attention, mlp=mlp, is_parallel=is_parallel)
