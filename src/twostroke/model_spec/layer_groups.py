"""Which layers share a block of the KV cache, where a model's layers see differently."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from twostroke.model_spec.number_formats import cache_format
from twostroke.model_spec.spec import ModelSpec

# More tables for each request cost more than the padding that they save.
MAX_GROUPS = 8


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers that cache something, in groups of one kind each.

    Attributes:
        windows: The window of each group, as in ``core.kv_groups.KVGroups``.
        layers: The indices of each group's layers.
    """

    windows: tuple[int | None, ...]
    layers: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Layers that a block has room for: those of the largest group."""
        return max(map(len, self.layers))

    def bytes_per_slot(self, model: ModelSpec, format_: str, ranks: int = 1) -> float:
        """Bytes of one token in one block, on one of ``ranks`` devices.

        The first layers of all groups take as much as the largest of them, and so do the second.
        """
        cached = cache_format(format_)
        bits = [
            layer.caching.cached_bits(cached, ranks) if layer.caching else 0
            for layer in model.each_layer()
        ]
        places = zip_longest(*self.layers)
        return sum(max(bits[i] for i in place if i is not None) for place in places) / 8


def group_layers(model: ModelSpec, *, keeps_all: bool = False) -> LayerGroups:
    """Groups of as many layers each as waste the least, and of those the fewest.

    Args:
        keeps_all: Nothing may be given back: something else reads blocks that the model's windows
            have passed. Then all layers are one group.
    """
    windows = model.sliding_windows
    cached = [i for i, layer in enumerate(model.each_layer()) if layer.caching]
    kinds: dict[int | None, list[int]] = {}
    for index in cached:
        kinds.setdefault(windows[index], []).append(index)
    if keeps_all or not kinds:
        return LayerGroups((None,), (tuple(cached),))
    if len(kinds) == 1:
        return LayerGroups((*kinds,), (tuple(cached),))
    size = _best_size([len(layers) for layers in kinds.values()])
    made: list[tuple[int | None, tuple[int, ...]]] = []
    for window, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[1])):
        made += [(window, tuple(layers[i : i + size])) for i in range(0, len(layers), size)]
    return LayerGroups(tuple(w for w, _ in made), tuple(layers for _, layers in made))


def groups_beside(model: ModelSpec, speculation: str | None) -> LayerGroups:
    """Groups of a model, with a method of speculation or none.

    What drafts with a cache of its own reads all blocks, and a model's first layers, where they
    draft, one block table.
    """
    groups = group_layers(model, keeps_all=speculation in ("draft", "mtp"))
    if speculation == "early-exit" and len(groups.layers) > 1:
        return group_layers(model, keeps_all=True)
    return groups


def _best_size(counts: list[int]) -> int:
    """Layers of a group, from how many layers each kind has."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    allowed = max(MAX_GROUPS, len(counts))
    sizes = [size for size in range(1, max(counts) + 1) if num_groups(size) <= allowed]
    return min(sizes, key=lambda size: (num_groups(size) * size, num_groups(size)))
