"""The one reader of Hugging Face ``config.json`` files, for the runtime and for the simulator.

What a family of models has that others have not is a row of ``families``; each kind of layer has a
file of its own (``attention_layers``, ``feed_forward``, ``recurrent_layers``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.attention_layers import read_attention
from twostroke.model_spec.config.families import FAMILIES, SAME
from twostroke.model_spec.config.feed_forward import read_feed_forward
from twostroke.model_spec.config.gemma4 import fields_of_layer, finish_layer, read_layer_table
from twostroke.model_spec.config.layer_kinds import read_layer_kinds
from twostroke.model_spec.config.recurrent_layers import read_recurrent
from twostroke.model_spec.config.rotation import (
    DEFAULT_LENGTH,
    read_rope,
)
from twostroke.model_spec.config.scales import (
    read_embedding_scale,
    read_logit_scale,
    read_multipliers,
    read_residual_scale,
)
from twostroke.model_spec.config_fields import ConfigFields, short
from twostroke.model_spec.generation_config import parse_end_tokens, read_generation
from twostroke.model_spec.json_files import read_config_files, read_object
from twostroke.model_spec.layer_specs import LayerSpec, Linears, LinearSpec, Part
from twostroke.model_spec.number_formats import stated_quantization, stored_format
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.unquantised import Unquantised

DTYPES = ("float32", "float16", "bfloat16")
UNBOUNDED = 2**20  # context of a model without attention: nothing limits it


def read_model(path: Path, model_types: Sequence[str] | None = None) -> ModelSpec:
    """Read ``config.json``, given as the file or as its folder, and the files beside it.

    These are ``generation_config.json`` and ModelOpt's ``hf_quant_config.json``.

    Args:
        model_types: See ``parse_model``.

    Raises:
        ModelLoadError: A file is missing or unreadable, and as ``parse_model`` says.
    """
    hint = "give a config.json of a Hugging Face checkpoint, or its folder"
    if path.is_dir() or path.name == "config.json":
        folder = path if path.is_dir() else path.parent
        return parse_model(read_config_files(folder, hint), read_generation(folder), model_types)
    return parse_model(read_object(path, hint), read_generation(path.parent), model_types)


def parse_model(
    config: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    model_types: Sequence[str] | None = None,
) -> ModelSpec:
    """Parse the contents of ``config.json`` (and ``generation_config.json``).

    Args:
        model_types: Which architectures may be read, under no other name; by default all known.

    Raises:
        ModelLoadError: The architecture is unknown, or a value is missing or makes no sense.
    """
    raw, model_type = _text_model(config, model_types)
    fields, family = ConfigFields(raw), FAMILIES[model_type]
    hidden, vocabulary = fields.integer("hidden_size"), fields.integer("vocab_size")
    stated_length = fields.optional("max_position_embeddings")
    default_length = UNBOUNDED if family.unbounded else DEFAULT_LENGTH
    layer_vocab, input_size = read_layer_table(fields) if model_type == "gemma4_text" else (0, 0)
    quantization = stated_quantization(raw)
    if isinstance(quantization, Mapping) and quantization:
        quantization = quantization.get("quant_method") or "unknown"
    return ModelSpec(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=_layers(fields, model_type, hidden),
        head=LinearSpec("head", (Part(vocabulary, vocabulary),), hidden, quantised=False),
        tied=fields.flag(
            "tie_embedding" if "tie_embedding" in raw else "tie_word_embeddings", family.tied
        ),
        other_parameters=hidden + input_size,
        norm_eps=fields.number(*family.norm_eps),
        stated_length=stated_length,
        default_length=default_length,
        rope=None if family.unbounded else read_rope(fields, family),
        embedding_scale=read_embedding_scale(fields, family, hidden),
        logit_scale=read_logit_scale(fields, family),
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        format=stored_format(raw),
        dtype=stated_dtype(raw),
        quantization=str(quantization)[:40] if quantization else "",
        layer_vocab=layer_vocab,
        eos_token_ids=parse_end_tokens(generation or {}, raw),
    )


def _text_model(
    config: Mapping[str, Any], model_types: Sequence[str] | None
) -> tuple[dict[str, Any], str]:
    """The fields of the text model, and the architecture that reads them."""
    if model_types is not None and config.get("model_type") not in model_types:
        raise _unknown(config.get("model_type"), "supported architectures", model_types)
    inner = config.get("text_config")
    raw = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    if "tie_word_embeddings" in config:  # the head belongs to the whole
        raw["tie_word_embeddings"] = config["tie_word_embeddings"]
    if model_types is not None and raw.get("model_type") not in model_types:
        raise _unknown(raw.get("model_type"), "supported architectures", model_types)
    stated = str(raw.get("model_type"))
    model_type = SAME.get(stated, stated)
    if model_type not in FAMILIES:
        raise _unknown(raw.get("model_type"), "known to the simulator", [*FAMILIES, *SAME])
    return {**FAMILIES[model_type].defaults, **raw}, model_type


def _unknown(stated: object, what: str, names: Sequence[str]) -> ModelLoadError:
    return ModelLoadError(
        f"unknown architecture: model_type is {short(stated)}", hint=f"{what}: {', '.join(names)}"
    )


def _layers(fields: ConfigFields, model_type: str, hidden: int) -> tuple[LayerSpec, ...]:
    unquantised = Unquantised(fields.raw)
    kinds = read_layer_kinds(fields, model_type)
    layers = [
        _as_stored(_layer(fields, model_type, hidden, index, kinds), unquantised, index)
        for index in range(len(kinds))
    ]
    return tuple(replace(layer, count=sum(1 for _ in same)) for layer, same in groupby(layers))


def _layer(
    fields: ConfigFields, model_type: str, hidden: int, index: int, kinds: Sequence[str | None]
) -> LayerSpec:
    if model_type != "gemma4_text":
        return _plain_layer(fields, model_type, hidden, index, kinds[index])
    own = fields_of_layer(fields, kinds, index)
    layer = _plain_layer(own, model_type, hidden, index, kinds[index])
    return finish_layer(fields, kinds, index, hidden, layer)


def _plain_layer(
    fields: ConfigFields, model_type: str, hidden: int, index: int, kind: str | None
) -> LayerSpec:
    family = FAMILIES[model_type]
    branches = 1 if family.norms == 1 and not family.parallel else 2
    attends = kind not in ("linear_attention", "mlp", "moe")
    mlp, experts = None, None
    if branches == 2 or kind in ("mlp", "moe"):
        mlp, experts = read_feed_forward(fields, model_type, hidden, index, kind)
    return LayerSpec(
        1,
        family.norms * hidden,
        read_attention(fields, model_type, hidden, index, kind) if attends else None,
        read_recurrent(fields, model_type, hidden)
        if kind in ("linear_attention", "hybrid")
        else None,
        mlp,
        experts,
        branches,
        read_residual_scale(fields, family),
        multipliers=read_multipliers(fields, family),
    )


def _as_stored(layer: LayerSpec, unquantised: Unquantised, index: int) -> LayerSpec:
    """Every product marked that the checkpoint left unquantised in layer ``index``."""
    if not unquantised:
        return layer

    def stored(linears: Linears) -> Linears:
        return tuple(
            replace(it, quantised=it.quantised and not unquantised.has(it.name, index))
            for it in linears
        )

    attends, keeps, mlp, experts = layer.attention, layer.recurrent, layer.mlp, layer.experts
    return replace(
        layer,
        attention=attends and replace(attends, linears=stored(attends.linears)),
        recurrent=keeps and replace(keeps, linears=stored(keeps.linears)),
        mlp=mlp and replace(mlp, linears=stored(mlp.linears)),
        experts=experts
        and replace(experts, linears=stored(experts.linears), shared=stored(experts.shared)),
    )


def stated_dtype(raw: Mapping[str, Any]) -> str | None:
    """Precision of the weights, where a ``config.json`` says one of ``DTYPES``."""
    name = str(raw.get("dtype", raw.get("torch_dtype"))).removeprefix("torch.")
    return name if name in DTYPES else None
