"""Which layer of a model is of which kind, as ``config.json`` states it or its family implies."""

from __future__ import annotations

from typing import Any, NoReturn

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.families import FAMILIES
from twostroke.model_spec.config.rotation import (
    is_rotated,
)
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short

# Older names of kinds; the letters that Nemotron-H writes in their place.
OLDER = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "conv": "linear_attention",
    "deepseek_sparse_attention": "full_attention",  # an index says how sparse
}
PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
# No model has as many, and fewer take no time.
MAX_LAYERS = 10_000


def read_layer_kinds(fields: ConfigFields, model_type: str) -> list[str | None]:
    """The kind of every layer; ``None`` where all of a model's layers are of one kind.

    Raises:
        ModelLoadError: A kind is unknown, or there are more or fewer than layers.
    """
    stated = _stated_kinds(fields, model_type)
    if model_type == "nemotron_h":  # its list is what counts, as in transformers
        return list(stated)
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    if stated and len(stated) != num_layers:
        raise ModelLoadError(
            f"config.json: layer_types has {len(stated)} entries for {num_layers} layers",
            hint=CHECK,
        )
    kinds: list[str | None] = [*stated]
    kinds = kinds or [_implied_kind(fields, model_type, i) for i in range(num_layers)]
    if model_type == "gemma4_text":  # whatever its list says, as in transformers
        kinds[-1] = "full_attention"
    return kinds


def _stated_kinds(fields: ConfigFields, model_type: str) -> list[str]:
    possible = FAMILIES[model_type].kinds
    kinds: list[Any] = fields.items("layer_types") or fields.items("layers_block_type")
    if model_type == "nemotron_h":
        kinds = kinds or _pattern(fields)
    kinds = [OLDER.get(str(kind), kind) for kind in kinds]
    for index, kind in enumerate(kinds):
        if kind not in possible:
            _refuse_kind(kind, index, possible)
    return kinds


def _pattern(fields: ConfigFields) -> list[str]:
    pattern = fields.raw.get("hybrid_override_pattern")
    letters = pattern[: MAX_LAYERS + 1] if isinstance(pattern, str) else ""
    if not 0 < len(letters) <= MAX_LAYERS:
        raise ModelLoadError(
            f"config.json: hybrid_override_pattern must name 1 to {MAX_LAYERS} layers, got"
            f" {short(pattern)}",
            hint=CHECK,
        )
    return [PATTERN.get(letter, letter) for letter in letters]


def _refuse_kind(kind: object, index: int, possible: tuple[str, ...]) -> NoReturn:
    raise ModelLoadError(
        f"config.json: layer_types says {short(kind)} of layer {index}",
        hint="known: " + ", ".join(possible),
    )


def _implied_kind(fields: ConfigFields, model_type: str, index: int) -> str | None:
    if model_type == "llama4_text":
        # Those that do not rotate see everything.
        return "chunked_attention" if is_rotated(fields, index) else "full_attention"
    if model_type == "gemma4_text":
        every = FAMILIES[model_type].pattern
        return "sliding_attention" if (index + 1) % every else "full_attention"
    recurrent = FAMILIES[model_type].recurrent
    if not recurrent:
        return None
    if recurrent == "lightning":
        types = fields.items("attn_type_list")
        if index >= len(types) or types[index] not in (0, 1):
            raise ModelLoadError(
                f"config.json: attn_type_list has no 0 or 1 for layer {index}", hint=CHECK
            )
        return "full_attention" if types[index] else "linear_attention"
    if model_type == "falcon_h1":
        return "hybrid"
    attends = False
    if model_type == "jamba":
        attends = fields.is_turn(index, "attn_layer", period=8, offset=4)
    elif model_type == "bamba":
        attends = index in fields.items("attn_layer_indices")
    elif model_type == "lfm2":
        chosen = fields.items("full_attn_idxs")
        attends = index in chosen if chosen else True
    elif recurrent == "delta":
        attends = (index + 1) % fields.integer("full_attention_interval", 4) == 0
    return "full_attention" if attends else "linear_attention"
