"""Attention of models whose layers differ in block table or shape: a backend for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from twostroke.layers.attention.base import (
    Attention,
    AttentionBackend,
    AttentionMetadata,
    FixedTables,
    KernelCache,
    LayerCache,
)


class GroupedBackend:
    """See ``AttentionBackend``; ``metadata.groups`` has the block tables, where there are several.

    Args:
        backends: One for each kind, for its layers alone.
        layers: The indices of each kind's layers.
        tables: Which block table each kind reads.
    """

    def __init__(
        self,
        backends: Sequence[AttentionBackend],
        layers: Sequence[Sequence[int]],
        tables: Sequence[int],
    ) -> None:
        self._backends = backends
        self._tables = tables
        places = {
            layer: (kind, index)
            for kind, members in enumerate(layers)
            for index, layer in enumerate(members)
        }
        self._places = dict(sorted(places.items()))
        self._caches: dict[int, LayerCache] | None = None

    def prepare(self, metadata: AttentionMetadata) -> GroupedAttention:
        tables = metadata.groups or [metadata]
        attentions = [
            backend.prepare(tables[table]) for backend, table in zip(self._backends, self._tables)
        ]
        return GroupedAttention(attentions, self._places, self._kernel_cache(attentions))

    def fixed_tables(self, rows: int, columns: int) -> GroupedTables | None:
        kinds = [each.fixed_tables(rows, columns) for each in self._backends]
        tables = [kind for kind in kinds if kind is not None]
        if len(tables) < len(kinds):
            return None
        return GroupedTables(tables, self._tables, self._places)

    def _kernel_cache(self, attentions: Sequence[Attention]) -> KernelCache | None:
        """The kinds' caches together, if all of them have one."""
        kinds = [cache for each in attentions if (cache := each.kernel_cache) is not None]
        if len(kinds) < len(attentions):
            return None
        if self._caches is None:
            self._caches = {
                layer: replace(kinds[kind].layers[index], group=kind)
                for layer, (kind, index) in self._places.items()
            }
        return KernelCache([group for kind in kinds for group in kind.groups], self._caches)


@dataclass(frozen=True, slots=True)
class GroupedTables:
    """See ``FixedTables``; the arguments are ``GroupedBackend``'s."""

    kinds: Sequence[FixedTables]
    tables: Sequence[int]
    places: Mapping[int, tuple[int, int]]

    def attention(self, rows: int) -> GroupedAttention:
        return GroupedAttention([kind.attention(rows) for kind in self.kinds], self.places, None)

    def fill(self, metadata: AttentionMetadata, rows: int) -> None:
        groups = metadata.groups or [metadata]
        for kind, table in zip(self.kinds, self.tables):
            kind.fill(groups[table], rows)


@dataclass(slots=True)
class GroupedAttention:
    """Attention of one step, see ``Attention``."""

    kinds: Sequence[Attention]
    places: Mapping[int, tuple[int, int]]
    kernel_cache: KernelCache | None

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        kind, index = self.places[layer]
        return self.kinds[kind](index, query, key, value, sinks)
