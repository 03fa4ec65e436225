"""What the size of a KV cache depends on, as numbers that sliders can be put to.

A conversation of ``tokens`` tokens takes ``state_bytes`` and, for each kind of layer, ``count`` x
its bytes per token x the smaller of ``tokens`` and its window. That is ``ModelSpec.kv_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.model_spec.kv_arithmetic import changed_models, kv_layers
from twostroke.model_spec.number_formats import CACHE_FORMATS
from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KVTerm:
    """Layers that cache alike, as in ``KVLayers``; ``bytes_per_token`` of one, by format."""

    count: int
    kind: str
    elements: int
    source: str
    window: int | None
    bytes_per_token: dict[str, float]


@dataclass(frozen=True, slots=True)
class KVVariant:
    """The model with other attention; ``title`` says with which."""

    title: str
    terms: tuple[KVTerm, ...]


@dataclass(frozen=True, slots=True)
class KVTerms:
    """One model.

    Attributes:
        context_length: Longest conversation in tokens.
        weight_bytes: In the format of the checkpoint.
        state_bytes: Recurrent state of a conversation, whatever its length.
        variants: Models with other attention, for comparison.
    """

    name: str
    parameters: int
    weight_bytes: int
    context_length: int
    state_bytes: int
    terms: tuple[KVTerm, ...]
    variants: tuple[KVVariant, ...]


def kv_terms(name: str, model: ModelSpec, weight_format: str | None = None) -> KVTerms:
    """The terms of a model, in every format of keys and values.

    Args:
        weight_format: In which the weights are kept, if not as in the checkpoint.
    """
    return KVTerms(
        name=name,
        parameters=model.num_parameters,
        weight_bytes=model.weight_bytes(weight_format),
        context_length=model.context_length,
        state_bytes=model.state_bytes(),
        terms=_terms(model),
        variants=tuple(
            KVVariant(title, _terms(changed)) for title, changed in changed_models(model)
        ),
    )


def _terms(model: ModelSpec) -> tuple[KVTerm, ...]:
    # The kinds are the same, in the same order, in whichever format.
    by_format = {name: kv_layers(model, name) for name in CACHE_FORMATS}
    return tuple(
        KVTerm(
            count=kind.count,
            kind=kind.kind,
            elements=kind.elements,
            source=kind.source,
            window=kind.window,
            bytes_per_token={
                name: layers[index].bytes_per_token for name, layers in by_format.items()
            },
        )
        for index, kind in enumerate(by_format["bf16"])
    )
