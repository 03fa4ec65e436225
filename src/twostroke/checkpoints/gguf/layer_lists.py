"""What a file states once for all layers, or in a list with a number for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.checkpoints.gguf.architecture import Architecture
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.model_spec.config_fields import short


def read_each(
    metadata: Metadata, key: str, blocks: int, layers: int, default: int | None = None
) -> list[int]:
    """The number of each of ``layers`` layers.

    Args:
        blocks: How many a list has, with layers that draft, which follow the others.

    Raises:
        ModelLoadError: A list has more or fewer; or there is neither a number nor a list.
    """
    if not isinstance(metadata.values.get(key), list):
        return [metadata.integer(key, default)] * layers
    numbers = metadata.integers(key)
    if len(numbers) != blocks:
        raise metadata.refusal(key, f"has {len(numbers)} entries for {blocks} layers")
    return numbers[:layers]


def only(metadata: Metadata, key: str, numbers: Sequence[int], *, of_some: bool) -> int:
    """The one number of all layers; ``of_some``: of those that have any, 1 if none has.

    Raises:
        ModelLoadError: Layers differ.
    """
    stated = sorted({number for number in numbers if number or not of_some})
    if len(stated) > 1:
        raise metadata.refusal(key, f"states {short(stated)}: layers that differ are not supported")
    return stated[0] if stated else 1


def read_layer_sizes(
    metadata: Metadata, name: str, own: Architecture, blocks: int, layers: int
) -> dict[str, Any]:
    """Key-value heads, sizes of MLPs, and which layers have which of them.

    Args:
        name: That of the architecture.

    Raises:
        ModelLoadError: A list is too long or too short, or not of what is supported.
    """
    heads = metadata.integer(f"{name}.attention.head_count")
    kv_key, size_key = f"{name}.attention.head_count_kv", f"{name}.feed_forward_length"
    kv_heads = read_each(metadata, kv_key, blocks, layers, heads)
    of_experts = f"{name}.expert_feed_forward_length"
    if own.delta and size_key not in metadata and of_experts in metadata:
        size_key = of_experts  # all layers have experts
    sizes = read_each(metadata, size_key, blocks, layers)
    is_listed = bool(own.unattending) and isinstance(metadata.values.get(kv_key), list)
    fields: dict[str, Any] = {
        "num_key_value_heads": only(metadata, kv_key, kv_heads, of_some=is_listed),
        "intermediate_size": only(metadata, size_key, sizes, of_some=bool(own.feeding)),
    }
    if own.feeding or is_listed:
        kinds = zip(kv_heads, sizes, strict=True)
        fields["layer_types"] = [_kind(own, *each) for each in kinds]
    return fields


def _kind(own: Architecture, kv_heads: int, size: int) -> str:
    """That of a layer, as ``layer_types`` has it."""
    if own.feeding and size:
        return own.feeding
    return "full_attention" if kv_heads else own.unattending
