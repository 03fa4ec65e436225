"""Attention of models whose layers have different block tables: a backend for each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

from twostroke.layers.attention.base import (
    Attention,
    AttentionBackend,
    AttentionMetadata,
    KernelCache,
    LayerCache,
    LayerRun,
)


class GroupedBackend:
    """See ``AttentionBackend``; ``metadata.groups`` says what each group's backend is given.

    Args:
        backends: One for each group, for its layers alone.
        layers: The indices of each group's layers.
    """

    def __init__(
        self, backends: Sequence[AttentionBackend], layers: Sequence[Sequence[int]]
    ) -> None:
        self._backends = backends
        places = {
            layer: (group, index)
            for group, members in enumerate(layers)
            for index, layer in enumerate(members)
        }
        self._places = [places[layer] for layer in range(len(places))]
        self._caches: list[LayerCache] | None = None  # of all layers in order

    def prepare(self, metadata: AttentionMetadata) -> GroupedAttention:
        pairs = zip(self._backends, metadata.groups, strict=True)
        attentions = [backend.prepare(group) for backend, group in pairs]
        return GroupedAttention(attentions, self._places, self._kernel_cache(attentions))

    def _kernel_cache(self, attentions: Sequence[Attention]) -> KernelCache | None:
        """The groups' caches together, if all of them have one."""
        groups = [cache for each in attentions if (cache := each.kernel_cache) is not None]
        if len(groups) < len(attentions):
            return None
        if self._caches is None:
            self._caches = [groups[group].layers[index] for group, index in self._places]
        runs = [
            LayerRun(len(list(layers)), groups[group].call, groups[group].slots)
            for group, layers in groupby(group for group, _ in self._places)
        ]
        return KernelCache(groups[0].call, self._caches, groups[0].slots, runs)


@dataclass(slots=True)
class GroupedAttention:
    """Attention of one step, see ``Attention``."""

    groups: Sequence[Attention]
    places: Sequence[tuple[int, int]]
    kernel_cache: KernelCache | None

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group, index = self.places[layer]
        return self.groups[group](index, query, key, value)
