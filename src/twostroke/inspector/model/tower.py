"""The layers of a model as a tower: what each part is, its shape, its bytes."""

from __future__ import annotations

import msgspec

from twostroke.model_spec.kv_arithmetic import kind_of
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.number_formats import cache_format
from twostroke.model_spec.spec import ModelSpec


class TowerPart(msgspec.Struct):
    """Weights of one kind, of one layer; see ``WeightPart``."""

    name: str
    group: str
    copies: int
    inputs: int
    outputs: int
    parameters: int
    bytes: float


class Storey(msgspec.Struct):
    """Equal layers, or what is below and above them.

    Attributes:
        layers: How many; 0 for what is no layer.
        first: Number of the first of them.
        parameters, bytes: Of one layer, or of the whole where it is none.
        attention: What kind, in words; empty without attention.
        window: How many of the latest tokens are seen; ``None`` is all.
        kv_bytes_per_token: That one layer caches.
        experts: How many a layer has; 0 is none. A token goes through ``experts_per_token``.
    """

    title: str
    layers: int
    first: int
    parts: list[TowerPart]
    parameters: int
    bytes: float
    attention: str = ""
    window: int | None = None
    kv_bytes_per_token: float = 0.0
    experts: int = 0
    experts_per_token: int = 0


class Tower(msgspec.Struct):
    """A model from its input up.

    Attributes:
        active_parameters: That one token is multiplied with.
        tied: Whether the head uses the embedding's weights.
        ranks: Devices that share each layer; bytes are of one of them.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    context_length: int
    parameters: int
    active_parameters: int
    weight_bytes: int
    kv_bytes_per_token: float
    tied: bool
    weights: str
    kv_cache: str
    ranks: int
    storeys: list[Storey]


def draw_tower(name: str, model: ModelSpec, weights: str, kv_cache: str, ranks: int = 1) -> Tower:
    """The tower of a model whose weights and cache are kept in these formats.

    Raises:
        ConfigError: A format is unknown.
    """
    storeys: list[Storey] = []
    runs: dict[int | None, list[TowerPart]] = {}
    ends: list[tuple[str, TowerPart]] = []
    for part in model.weight_parts(weights, ranks):
        shown = TowerPart(
            part.name,
            part.group,
            part.copies,
            part.inputs,
            part.outputs,
            part.parameters,
            part.bits / 8,
        )
        if part.run is None:
            ends.append((part.name, shown))
        else:
            runs.setdefault(part.run, []).append(shown)
    cached = cache_format(kv_cache)
    first = 0
    for run, layer in enumerate(model.layers):
        storey = _storey("layer", runs[run], layer.count, first)
        _describe_layer(storey, layer)
        if layer.caching:
            storey.kv_bytes_per_token = layer.caching.cached_bits(cached, ranks) / 8
        storeys.append(storey)
        first += layer.count
    below = [_storey(title, [part], 0, 0) for title, part in ends if part.group == "embedding"]
    above = [_storey(title, [part], 0, 0) for title, part in ends if part.group != "embedding"]
    return Tower(
        name=name,
        model_type=model.model_type,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        num_layers=model.num_layers,
        context_length=model.context_length,
        parameters=model.num_parameters,
        active_parameters=model.active_parameters,
        weight_bytes=model.weight_bytes(weights, ranks),
        kv_bytes_per_token=model.kv_bytes_per_token(kv_cache, ranks),
        tied=model.tied,
        weights=weights,
        kv_cache=kv_cache,
        ranks=ranks,
        storeys=[*below, *storeys, *above],
    )


def _describe_layer(storey: Storey, layer: LayerSpec) -> None:
    if attention := layer.attention:
        storey.attention = (
            f"{kind_of(attention)}, {attention.heads} heads on {attention.kv_heads} for keys"
            " and values"
        )
        if attention.latent:
            storey.attention = f"MLA, {attention.heads} heads on one compressed vector"
            if attention.chosen is not None:
                storey.attention += f", {attention.chosen:,} tokens at most"
        storey.window = attention.window
    elif layer.recurrent:
        storey.attention = f"recurrent, {layer.recurrent.heads} heads"
    if layer.experts:
        storey.experts = layer.experts.count
        storey.experts_per_token = layer.experts.per_token


def _storey(title: str, parts: list[TowerPart], layers: int, first: int) -> Storey:
    return Storey(
        title,
        layers,
        first,
        [part for part in parts if part.parameters],
        sum(part.parameters for part in parts),
        sum(part.bytes for part in parts),
    )
