"""What one of several processes has of a model: whole heads, and a share of each inner size."""

from __future__ import annotations

from dataclasses import replace

from twostroke.core.errors import ConfigError
from twostroke.model_spec.layer_specs import (
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    Linears,
    LinearSpec,
    MlpSpec,
    Part,
)
from twostroke.model_spec.spec import ModelSpec


def rank_spec(spec: ModelSpec, ranks: int) -> ModelSpec:
    """A model of the layers that one of ``ranks`` processes computes.

    Heads of queries are divided, heads of keys and values too, or are there several times where
    they are fewer; inner sizes of MLPs and of experts are divided. The hidden state is whole, and
    so are the vocabulary, routers and norms.

    Raises:
        ConfigError: They cannot be divided, or a kind of layer is not divided yet.
    """
    layers = tuple(_layer_of_rank(layer, ranks) for layer in spec.layers)
    return replace(spec, layers=layers)


def rows_of_rank(rows: int, ranks: int) -> int:
    """Rows of a table of tokens that each process has: its share, or all if there is none."""
    return rows // ranks if rows % ranks == 0 else rows


def _layer_of_rank(layer: LayerSpec, ranks: int) -> LayerSpec:
    if layer.recurrent is not None:
        raise _refused("recurrent layers")
    return replace(
        layer,
        attention=None if layer.attention is None else _attention(layer.attention, ranks),
        mlp=None if layer.mlp is None else _mlp(layer.mlp, ranks),
        experts=None if layer.experts is None else _experts(layer.experts, ranks),
    )


def _attention(whole: AttentionSpec, ranks: int) -> AttentionSpec:
    if whole.whole_norm:
        raise _refused("norms over all heads")
    heads = _share(whole.heads, ranks, "attention heads")
    kv_heads = whole.kv_heads
    if whole.latent is None:
        if max(kv_heads, ranks) % min(kv_heads, ranks):
            raise _undivided(kv_heads, "heads of keys and values", ranks)
        kv_heads = max(kv_heads // ranks, 1)
    return replace(whole, heads=heads, kv_heads=kv_heads, linears=_linears(whole.linears, ranks))


def _mlp(whole: MlpSpec, ranks: int) -> MlpSpec:
    size = _share(whole.size, ranks, "elements between an MLP's products")
    return replace(whole, size=size, linears=_linears(whole.linears, ranks))


def _experts(whole: ExpertsSpec, ranks: int) -> ExpertsSpec:
    return replace(
        whole,
        size=_share(whole.size, ranks, "elements between an expert's products"),
        shared_size=_share(whole.shared_size, ranks, "elements between shared experts' products"),
        linears=_linears(whole.linears, ranks),
        shared=_linears(whole.shared, ranks),
    )


def _linears(linears: Linears, ranks: int) -> Linears:
    return tuple(_linear(linear, ranks) for linear in linears)


def _linear(whole: LinearSpec, ranks: int) -> LinearSpec:
    parts = tuple(_part(part, ranks) for part in whole.parts)
    inputs = _part(Part(whole.inputs, whole.input_units), ranks)
    return replace(whole, parts=parts, inputs=inputs.outputs, input_units=inputs.units)


def _part(whole: Part, ranks: int) -> Part:
    return Part(whole.on_rank(ranks), -(-whole.units // ranks))


def _share(count: int, ranks: int, what: str) -> int:
    if count % ranks:
        raise _undivided(count, what, ranks)
    return count // ranks


def _undivided(count: int, what: str, ranks: int) -> ConfigError:
    return ConfigError(
        f"--tensor-parallel-size {ranks} does not divide the model's {count} {what}",
        hint="choose a divisor",
    )


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"--tensor-parallel-size does not work with {what}", hint="leave it out for this model"
    )
