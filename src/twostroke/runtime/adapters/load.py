"""From an adapter's files to what a model's layers add."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.checkpoints.adapters.peft_folder import LowRankPair, StoredAdapter
from twostroke.core.errors import InsufficientMemoryError, ModelLoadError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.kernels.library import Library
from twostroke.layers.low_rank import LowRank
from twostroke.runtime.adapters.places import AdapterPlace, AdapterPlaces, module_name
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.device import free_memory

Pairs = dict[str, LowRankPair]  # by modules' names from the layer on


def match_places(
    stored: StoredAdapter, places: AdapterPlaces
) -> dict[str, tuple[AdapterPlace, Pairs]]:
    """The places that an adapter adds to, by their names, with its pairs there.

    Raises:
        ModelLoadError: A module is none that can be added to, or has another shape there; or one
            that the configuration names has no tensors.
    """
    matched: dict[str, tuple[AdapterPlace, Pairs]] = {}
    for module, pair in stored.pairs.items():
        name = module_name(module)
        place = places.by_module.get(name)
        if place is None:
            raise ModelLoadError(
                f"the adapter's module {module[:200]} cannot be used: {_why_not(module)}",
                hint=f"modules that can: {_kinds(places)}",
            )
        inputs, outputs = place.inputs, place.parts[name].size
        shapes = pair.down.shape[1], pair.up.shape[0]
        if shapes != (inputs, outputs):
            raise ModelLoadError(
                f"the adapter's module {module[:200]} takes {shapes[0]} to {shapes[1]} values, in"
                f" this model it is {inputs} to {outputs}",
                hint="the adapter belongs to another model",
            )
        pairs = matched.setdefault(place.name, (place, {}))[1]
        if name in pairs:
            raise ModelLoadError(f"the adapter has {name} twice, under different prefixes")
        pairs[name] = pair
    _check_complete(stored, places, {name for _, own in matched.values() for name in own})
    return matched


def _check_complete(stored: StoredAdapter, places: AdapterPlaces, seen: set[str]) -> None:
    """A module that was adapted and has no tensors: the adapter was not saved whole."""
    some = next(iter(stored.pairs))
    prefix = some.removesuffix(module_name(some))
    for name in places.by_module:
        if stored.config.targets and name not in seen and stored.config.has(prefix + name):
            raise ModelLoadError(
                f"the adapter has no tensors for {prefix}{name}, which target_modules names",
                hint="it is incomplete, or belongs to another model",
            )


def check_room(
    matched: dict[str, tuple[AdapterPlace, Pairs]],
    dtype: torch.dtype,
    device: torch.device,
    most: int,
) -> None:
    """Raises InsufficientMemoryError for what has no room, before anything is read."""
    needed = sum(_size(*own) for own in matched.values()) * dtype.itemsize
    free = free_memory(device)
    if needed > min(most, free):
        room = f"--max-lora-memory is {format_bytes(most)}"
        if needed <= most:
            room = f"{device} has {format_bytes(free)} free"
        raise InsufficientMemoryError(
            f"the adapter needs {format_bytes(needed)}, but {room}",
            hint="use one of a lower rank, or give adapters more memory",
        )


def make_additions(
    matched: dict[str, tuple[AdapterPlace, Pairs]],
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None,
) -> dict[str, LowRank]:
    """What each place adds, in ``dtype``.

    Raises:
        ModelLoadError: A value is not finite.
    """
    made = {}
    for name, (place, pairs) in matched.items():
        down, up, scales = stacked(place, pairs)
        kept = [part.to(device, dtype) for part in (down, up)]
        if not all(bool(part.isfinite().all()) for part in kept):
            raise ModelLoadError(
                f"the adapter's values for {', '.join(pairs)} are not finite in {dtype}",
                hint="the adapter is broken, or its training diverged",
            )
        made[name] = LowRank(kept[0], kept[1], scales.to(device), library)
    return made


def stacked(place: AdapterPlace, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and the scales of a place, float32: ``[rank, in]``, ``[out, rank]`` and ``[rank]``.

    The parts' ranks lie one after the other. They are filled up to an even number, which the
    kernels need.
    """
    total = sum(pair.rank for pair in pairs.values())
    total += total % 2
    down, up = torch.zeros(total, place.inputs), torch.zeros(place.outputs, total)
    scales, start = torch.ones(total), 0
    for name, pair in pairs.items():
        end, part = start + pair.rank, place.parts[name]
        down[start:end], up[part.first : part.first + part.size, start:end] = read_pair(pair)
        scales[start:end] = pair.scale
        start = end
    return down, up if place.order is None else up[place.order], scales


def read_pair(pair: LowRankPair) -> tuple[Tensor, Tensor]:
    """A ``[rank, in]`` and B ``[out, rank]`` of a module, float32."""
    files = TensorFiles({"A": pair.down, "B": pair.up})
    down, up = torch.empty(pair.down.shape), torch.empty(pair.up.shape)
    files.copy("A", down)
    files.copy("B", up)
    return down, up


def _size(place: AdapterPlace, pairs: Pairs) -> int:
    return (place.inputs + place.outputs) * (1 + sum(pair.rank for pair in pairs.values()))


def _why_not(module: str) -> str:
    if "experts" in module or module.endswith(".gate"):
        return "adapters on experts are not supported"
    if module.endswith(("embed_tokens", "lm_head")):
        return "adapters on embeddings and the head are not supported"
    return "the model has no such linear layer, or it is one that adapters cannot add to"


def _kinds(places: AdapterPlaces) -> str:
    kinds = dict.fromkeys(name.split(".", 2)[2] for name in places.by_module)
    return ", ".join(kinds) or "none in this model"
