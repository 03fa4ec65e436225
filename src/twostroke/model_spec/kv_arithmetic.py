"""What a model's KV cache takes, where it comes from, and what other choices would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.number_formats import cache_format
from twostroke.model_spec.spec import ModelSpec

# Of a model that has none, for comparison: Llama 2 and 3 have 8 KV heads, Mistral 7B this window.
USUAL_KV_HEADS, USUAL_WINDOW = 8, 4096


@dataclass(frozen=True, slots=True)
class KVLayers:
    """Layers that cache alike.

    Attributes:
        kind: ``MHA``, ``GQA``, ``MQA`` or ``MLA``.
        elements: That one token adds to one layer.
        source: Where these come from, as a product.
        bytes_per_token: Bytes that one layer keeps of a token, scales included.
        window: How many of the latest tokens are kept; ``None`` is all.
    """

    count: int
    kind: str
    elements: int
    source: str
    bytes_per_token: float
    window: int | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One conversation's cache if one thing changed; ``share`` is its part of today's bytes."""

    name: str
    bytes: float
    share: float


@dataclass(frozen=True, slots=True)
class KVArithmetic:
    """One conversation's cache.

    Attributes:
        bytes_per_token: That a token adds while no window is full, over all layers.
        tokens: Length of the conversation.
        conversation_bytes: Windows cut, states of recurrent layers included.
        state_bytes: Those of the states.
    """

    format: str
    layers: tuple[KVLayers, ...]
    bytes_per_token: float
    tokens: int
    conversation_bytes: float
    state_bytes: int
    alternatives: tuple[Alternative, ...]


def kv_arithmetic(model: ModelSpec, tokens: int, format_: str = "auto") -> KVArithmetic:
    """How large a conversation of ``tokens`` tokens is; ConfigError for an unknown format."""
    name = cache_format(format_).name
    whole = model.kv_bytes(tokens, name)
    return KVArithmetic(
        format=name,
        layers=kv_layers(model, name),
        bytes_per_token=model.kv_bytes_per_token(name),
        tokens=tokens,
        conversation_bytes=whole,
        state_bytes=model.state_bytes(),
        alternatives=_alternatives(model, tokens, name, whole),
    )


def kv_layers(model: ModelSpec, format_: str = "auto") -> tuple[KVLayers, ...]:
    """Layers that cache, equal ones together. Raises ConfigError for an unknown format."""
    name = cache_format(format_).name
    merged: dict[KVLayers, int] = {}
    for layer in model.layers:
        if layer.caching is not None:
            kind = _layers_of(layer.caching, name)
            merged[kind] = merged.get(kind, 0) + layer.count
    return tuple(replace(kind, count=count) for kind, count in merged.items())


def kind_of(attention: AttentionSpec) -> str:
    """Multi-head, grouped-query, multi-query or multi-head latent attention, abbreviated."""
    if attention.latent:
        return "MLA"
    if attention.kv_heads == attention.heads:
        return "MHA"
    return "MQA" if attention.kv_heads == 1 else "GQA"


def _layers_of(attention: AttentionSpec, name: str) -> KVLayers:
    elements = attention.cached_elements()
    if attention.latent:
        source = f"{elements} compressed, shared by {attention.heads} heads"
        if attention.index is not None:
            source += f", and {attention.index.key_dim} of an index in fp8"
    elif attention.key_dim == attention.value_dim:
        source = f"2 x {attention.kv_heads} KV heads x {attention.key_dim}"
    else:
        source = f"{attention.kv_heads} KV heads x ({attention.key_dim} + {attention.value_dim})"
    return KVLayers(
        count=0,
        kind=kind_of(attention),
        elements=elements,
        source=source,
        bytes_per_token=attention.cached_bits(cache_format(name)) / 8,
        window=attention.window,
    )


def changed_models(model: ModelSpec) -> list[tuple[str, ModelSpec]]:
    """The model with other attention, where that is another: a title for each."""
    attentions = [layer.attention for layer in model.layers if layer.attention]
    made = []
    if any(a.latent or a.kv_heads < a.heads for a in attentions):
        made.append(("a KV head for each query head (MHA)", _changed(model, _as_mha)))
    for each in attentions:
        if not each.latent and each.kv_heads > USUAL_KV_HEADS and not each.heads % USUAL_KV_HEADS:
            made.append((f"{USUAL_KV_HEADS} KV heads (GQA)", _changed(model, _as_gqa)))
            break
    if any(a.window for a in attentions):
        made.append(("no window", _changed(model, lambda a: replace(a, window=None))))
    elif attentions:
        title = f"a window of {USUAL_WINDOW:,} tokens in all layers"
        made.append((title, _changed(model, lambda a: replace(a, window=USUAL_WINDOW))))
    return made


def _alternatives(
    model: ModelSpec, tokens: int, name: str, whole: float
) -> tuple[Alternative, ...]:
    if not whole or not any(layer.attention for layer in model.layers):
        return ()
    made = []

    def add(title: str, changed: ModelSpec, format_: str = name) -> None:
        size = changed.kv_bytes(tokens, format_)
        made.append(Alternative(title, size, size / whole))

    windows = any(layer.attention and layer.attention.window for layer in model.layers)
    for title, changed in changed_models(model):
        if windows or tokens > USUAL_WINDOW or not title.startswith("a window"):
            add(title, changed)
    for format_ in ("bf16", "fp8", "int8", "int4"):
        if format_ != name:
            add(f"--kv-cache-dtype {'bfloat16' if format_ == 'bf16' else format_}", model, format_)
    return tuple(made)


def _changed(model: ModelSpec, change: Callable[[AttentionSpec], AttentionSpec]) -> ModelSpec:
    return replace(
        model,
        layers=tuple(
            replace(layer, attention=change(layer.attention)) if layer.attention else layer
            for layer in model.layers
        ),
    )


def _as_mha(attention: AttentionSpec) -> AttentionSpec:
    return replace(attention, kv_heads=attention.heads, latent=None, index=None, chosen=None)


def _as_gqa(attention: AttentionSpec) -> AttentionSpec:
    return replace(attention, kv_heads=min(attention.kv_heads, USUAL_KV_HEADS))
