"""The KV cache's tensors: their allocation, copies and zeroing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.layers.kv_layout import KVLayout
from twostroke.layers.pages import fresh_tensor
from twostroke.runtime.state_tensors import NO_STATE_TENSORS, StateTensors


class KVTensors:
    """Keys and values of all layers, zeroed at first: whatever is masked must still be finite.

    Args:
        layout: Of the keys, and of the values, of every layer.
        groups: The indices of the layers that share a block; by default all. Layers of no group
            have no keys and values.
        states: Of recurrent layers, which have no keys and values.

    Attributes:
        keys: Per layer ``[blocks, *layout.block_shape]``; ``values`` the same. The first layers of
            all groups lie in one tensor, in blocks of their own, and so do the second.
        groups: As given.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        layout: KVLayout,
        device: torch.device,
        groups: Sequence[Sequence[int]] = (),
        states: StateTensors = NO_STATE_TENSORS,
    ) -> None:
        self.states = states
        self.num_blocks = num_blocks
        self.block_size = layout.block_size
        self.layout = layout
        shape = (num_blocks, *layout.block_shape)
        self.groups = groups or [range(num_layers)]
        size = max(map(len, self.groups))
        self._all_keys = [_zeros(shape, layout.dtype, device) for _ in range(size)]
        self._all_values = [_zeros(shape, layout.dtype, device) for _ in range(size)]
        places = {layer: i for group in self.groups for i, layer in enumerate(group)}
        # A layer without keys and values never asks for those that stand in its place.
        self.keys = [self._all_keys[places.get(layer, 0)] for layer in range(num_layers)]
        self.values = [self._all_values[places.get(layer, 0)] for layer in range(num_layers)]
        self._last = max(places)
        self._last_group = next(i for i, g in enumerate(self.groups) if self._last in g)

    def block_tensors(self) -> list[Tensor]:
        """All tensors that belong to blocks, each [blocks, ...]: together they are its content."""
        return [*self._all_keys, *self._all_values]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)``, all sources read before any is written."""
        if not copies:
            return
        pairs = torch.tensor(copies, device=self.keys[0].device)  # [copies, 2]
        source, destination = pairs[:, 0], pairs[:, 1]
        for cache in self.block_tensors():
            cache[destination] = cache[source]  # indexing gathers into a new tensor first

    def all_finite(self, slots: Tensor) -> bool:
        """Whether ``slots`` [slots] hold finite keys and values in the last layer.

        NaN of an earlier layer would be there too. With groups, ``slots`` are [slots, groups].
        """
        if slots.dim() > 1:
            slots = slots[:, self._last_group]
        # One sum of everything: a third of the time that one for each slot takes.
        last = self.keys[self._last], self.values[self._last]
        sums = [self.layout.probe(cache, slots) for cache in last]
        return bool(torch.isfinite(sums[0] + sums[1]))

    def zero_slots(self, slots: Tensor) -> None:
        """Zero ``slots`` in every layer, so that no other request reads a NaN there."""
        for cache in self.block_tensors():
            self.layout.zero(cache, slots.reshape(-1))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return fresh_tensor(shape, dtype)
