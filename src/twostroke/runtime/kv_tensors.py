"""The KV cache's tensors: their allocation, copies and zeroing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from twostroke.layers.kv_layout import KVLayout
from twostroke.layers.pages import fresh_tensor
from twostroke.runtime.cache_layouts import CacheLayout, layout_bytes
from twostroke.runtime.device import on_device
from twostroke.runtime.state_tensors import NO_STATE_TENSORS, StateTensors


class KVTensors:
    """Keys and values of all layers, zeroed at first: whatever is masked must still be finite.

    The first layers of all groups lie in the same memory, in blocks of their own, and so do the
    second. Where these differ in shape, a block has room for the largest.

    Args:
        layouts: The layout of each layer; some layer has tensors of its own.
        groups: The indices of the layers that share a block; by default all that have tensors.
        recurrent: The states of recurrent layers, which have no keys and values.
        block_size: Tokens per block where no layer has tensors; its blocks hold nothing then.

    Attributes:
        keys: Per layer ``[blocks, *layout.block_shape]``, like ``values``. For a latent layer both
            are its latents; for a layer that shares a cache, its owner's; for one without
            attention, empty.
        layouts, groups: As given.
        tables: By layer that attends, the group whose blocks it sees.
    """

    def __init__(
        self,
        layouts: Sequence[CacheLayout],
        num_blocks: int,
        device: torch.device,
        groups: Sequence[Sequence[int]] = (),
        recurrent: StateTensors = NO_STATE_TENSORS,
        block_size: int = 1,
    ) -> None:
        self.recurrent = recurrent
        self.num_blocks, self.device = num_blocks, device
        self.layouts = layouts
        own = [layer for layer, layout in enumerate(layouts) if layout.tensors]
        self.block_size = layouts[own[0]].tensors[0].block_size if own else block_size
        self.groups = groups or [own]
        self._blocks: list[list[Tensor]] = []  # of each place in a group
        self._tensors: dict[int, Sequence[Tensor]] = {}  # of each layer that has some
        for place in zip_longest(*self.groups):
            self._allocate([layer for layer in place if layer is not None], device)
        self.tables = {layer: table for table, group in enumerate(self.groups) for layer in group}
        for layer, layout in enumerate(layouts):
            if layout.owner != layer:
                self.tables[layer] = self.tables[layout.owner]
        nothing = [torch.empty(0, device=device)]
        seen = [self._tensors.get(layout.owner, nothing) for layout in layouts]
        self.keys = [tensors[0] for tensors in seen]
        self.values = [tensors[-1] for tensors in seen]
        self._last = own[-1] if own else None

    @property
    def format(self) -> str:
        """How numbers are stored, as ``--kv-cache-dtype`` names it; empty where none are."""
        if self._last is None:
            return ""
        return self.layouts[self._last].tensors[0].name

    def block_tensors(self) -> list[Tensor]:
        """All tensors that belong to blocks, each [blocks, ...]: together they are its content."""
        return [part for parts in zip_longest(*self._blocks) for part in parts if part is not None]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)``, all sources read before any is written."""
        if not copies or self._last is None:
            return
        source, destination = (on_device(blocks, self.device) for blocks in zip(*copies))
        for cache in self.block_tensors():
            cache[destination] = cache[source]  # indexing gathers into a new tensor first

    def are_finite(self, slots: Tensor) -> Tensor:
        """Whether ``slots`` [slots] hold finite keys and values in the last layer that has some.

        NaN of an earlier layer would be there too. With groups, ``slots`` are [slots, groups].
        Returns one bool on the device, which is not waited for.
        """
        if self._last is None:
            return torch.ones((), dtype=torch.bool, device=self.device)
        slots = self._of_layer(slots, self._last)
        # One sum of everything: a third of the time that one for each slot takes.
        sums = [layout.probe(cache, slots) for layout, cache in self._pairs(self._last)]
        return torch.isfinite(sum(sums[1:], start=sums[0]))

    def zero_slots(self, slots: Tensor) -> None:
        """Zero ``slots`` in every layer, so that no other request reads a NaN there."""
        for layer in self._tensors:
            for layout, cache in self._pairs(layer):
                layout.zero(cache, self._of_layer(slots, layer))

    def _of_layer(self, slots: Tensor, layer: int) -> Tensor:
        return slots if slots.dim() == 1 else slots[:, self.tables[layer]]

    def _pairs(self, layer: int) -> list[tuple[KVLayout, Tensor]]:
        return list(zip(self.layouts[layer].tensors, self._tensors[layer], strict=True))

    def _allocate(self, layers: Sequence[int], device: torch.device) -> None:
        """The memory of layers that take turns in the same blocks."""
        shapes = {self.layouts[layer].tensors for layer in layers}
        if len(shapes) == 1:
            (layouts,) = shapes
            tensors = [
                _zeros((self.num_blocks, *layout.block_shape), layout.dtype, device)
                for layout in layouts
            ]
            self._blocks.append(tensors)
            self._tensors |= dict.fromkeys(layers, tensors)
            return
        size = max(self.layouts[layer].block_bytes for layer in layers)
        memory = _zeros((self.num_blocks, size), torch.uint8, device)
        self._blocks.append([memory])
        for layer in layers:
            self._tensors[layer] = _views(memory, self.layouts[layer].tensors)


def _views(memory: Tensor, layouts: Sequence[KVLayout]) -> list[Tensor]:
    """Tensors one after the other in every block of ``memory`` [blocks, bytes]."""
    views, first = [], 0
    for layout in layouts:
        end = first + layout_bytes(layout)
        view = memory[:, first:end].view(layout.dtype)
        views.append(view.view(len(memory), *layout.block_shape))
        first = end
    return views


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return fresh_tensor(shape, dtype)
