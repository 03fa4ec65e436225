"""Model sheets from Hugging Face ``config.json`` files: one function per kind of layer, one table
of differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from twostroke.core.errors import ModelLoadError
from twostroke.core.file_errors import reason
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.feed_forward import feed_forward
from twostroke.model_spec.model_sheet import (
    Attention,
    Experts,
    Layer,
    Linear,
    ModelSheet,
    Part,
    Recurrence,
    whole,
)
from twostroke.model_spec.number_formats import stored_format
from twostroke.model_spec.recurrent_layers import MAMBA2, RecurrentLayer, gated_delta, mamba, mamba2
from twostroke.model_spec.unquantised import Unquantised


@dataclass(frozen=True, slots=True)
class Family:
    """How a model_type differs from Llama.

    Attributes:
        qkv_bias: ``None`` reads ``attention_bias``; ``output_bias`` the same.
        qk_norm: Norms over each query and key head.
        norms: Norms of the hidden size in a layer.
        head_dim: Default where the file says nothing and it is not hidden size over heads.
        tied: Default of ``tie_word_embeddings``.
        latent: Multi-head latent attention.
        recurrent: What layers have that keep a state: ``delta`` (then attention has a gate),
            ``mamba`` or ``mamba2``.
        unbounded: No layer has attention, and nothing limits the context.
    """

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    norms: int = 2
    head_dim: int | None = None
    tied: bool = False
    latent: bool = False
    recurrent: str = ""
    unbounded: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, output_bias=False),
    "qwen2": Family(qkv_bias=True, output_bias=False),
    "qwen3": Family(qk_norm=True, head_dim=128),
    "phi3": Family(qkv_bias=False, output_bias=False),
    "granite": Family(),
    "gemma2": Family(norms=4, head_dim=256, tied=True),
    "gemma3_text": Family(qk_norm=True, norms=4, head_dim=256, tied=True),
    "mixtral": Family(qkv_bias=False, output_bias=False),
    "qwen2_moe": Family(qkv_bias=True, output_bias=False),
    "qwen3_moe": Family(qk_norm=True),
    "gpt_oss": Family(qkv_bias=True, output_bias=True, head_dim=64),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": Family(latent=True),
    "glm4_moe": Family(output_bias=False),
    "llama4_text": Family(head_dim=128),
    "qwen3_next": Family(qk_norm=True, head_dim=256, recurrent="delta"),
    "qwen3_5_text": Family(qk_norm=True, head_dim=256, recurrent="delta"),
    "qwen3_5_moe_text": Family(qk_norm=True, head_dim=256, recurrent="delta"),
    "jamba": Family(qkv_bias=False, output_bias=False, recurrent="mamba"),
    "nemotron_h": Family(
        qkv_bias=False, output_bias=False, norms=1, head_dim=128, recurrent="mamba2"
    ),
    "granitemoehybrid": Family(recurrent="mamba2"),
    "falcon_h1": Family(recurrent="mamba2"),
    "bamba": Family(recurrent="mamba2"),
    "mamba2": Family(norms=1, recurrent="mamba2", unbounded=True),
    "mamba": Family(norms=1, tied=True, recurrent="mamba", unbounded=True),
}
# Other names of the same architectures.
SAME = {
    "kimi_k2": "deepseek_v3",
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "falcon_mamba": "mamba",
}
# Kinds of layers in ``layer_types``, and older names of them; the letters that Nemotron-H writes in
# their place.
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
OLDER = {"attention": "full_attention", "mamba": "linear_attention"}
PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
# Families whose key-value heads are 8 if nothing is said; those of others are as many as their
# query heads.
GROUPED = ("mistral", "mixtral", "jamba", "nemotron_h", "falcon_h1", "bamba")
# No model has as many, and fewer take no time.
MOST_LAYERS = 10_000
# Context of a model that states none: without attention nothing limits it.
UNBOUNDED = 2**20


def read_model(path: Path) -> ModelSheet:
    """Read ``config.json``, given as the file or as its folder. Raises ModelLoadError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        hint = "give a config.json of a Hugging Face checkpoint, or its folder"
        raise ModelLoadError(f"cannot read {file}: {reason(error)}", hint=hint) from error
    if not isinstance(raw, dict):
        raise ModelLoadError(
            f"{file} holds no JSON object", hint="give a config.json of a Hugging Face checkpoint"
        )
    return model_sheet(raw)


def model_sheet(config: Mapping[str, Any]) -> ModelSheet:
    """Parse the contents of a ``config.json``.

    Raises:
        ModelLoadError: The architecture is unknown, or a value is missing or makes no sense.
    """
    inner = config.get("text_config")
    raw = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    model_type = SAME.get(str(raw.get("model_type")), str(raw.get("model_type")))
    if model_type not in FAMILIES:
        raise ModelLoadError(
            f"unknown architecture: model_type is {short(raw.get('model_type'))}",
            hint="known to the simulator: " + ", ".join([*FAMILIES, *SAME]),
        )
    reader = _Reader(model_type, FAMILIES[model_type], raw)
    hidden, vocabulary = reader.hidden, reader.integer("vocab_size")
    layers = [reader.layer(index) for index in range(reader.num_layers)]
    return ModelSheet(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=tuple(replace(layer, count=sum(1 for _ in same)) for layer, same in groupby(layers)),
        head=Linear("head", (Part(vocabulary, vocabulary),), hidden, quantised=False),
        tied=reader.flag("tie_word_embeddings", reader.family.tied),
        other_parameters=hidden,
        max_length=reader.integer(
            "max_position_embeddings", UNBOUNDED if reader.family.unbounded else 4096
        ),
        format=stored_format(raw),
    )


class _Reader(ConfigFields):
    """Reads the layers of one file."""

    def __init__(self, model_type: str, family: Family, raw: Mapping[str, Any]) -> None:
        super().__init__(raw)
        self.model_type = model_type
        self.family = family
        self.hidden = self.integer("hidden_size")
        self.heads = self.kv_heads = 0
        if not family.unbounded:
            self._read_heads()
        self._kinds = self._stated_kinds()
        blocks = model_type == "nemotron_h"  # its list is what counts, as in transformers
        self.num_layers = (
            len(self._kinds) if blocks else self.integer("num_hidden_layers", most=MOST_LAYERS)
        )
        self._unquantised = Unquantised(raw)

    def _read_heads(self) -> None:
        self.heads = self.integer("num_attention_heads")
        default = 8 if self.model_type in GROUPED else self.heads
        self.kv_heads = self.integer("num_key_value_heads", default)
        if self.heads % self.kv_heads:
            raise ModelLoadError(
                f"config.json: {self.heads} attention heads cannot share {self.kv_heads} key-value"
                " heads",
                hint=CHECK,
            )

    def layer(self, index: int) -> Layer:
        """One layer of the sheet; equal ones are counted by the caller."""
        kind = self._layer_type(index)
        linears: list[Linear] = []
        other, branches = self.family.norms * self.hidden, 1 if self.family.norms == 1 else 2
        attention: Attention | None = None
        recurrence: Recurrence | None = None
        experts: Experts | None = None
        if kind in ("linear_attention", "hybrid"):
            linears, more, recurrence = self._recurrent()
            other += more
        if kind not in ("linear_attention", "mlp", "moe"):
            found, more, attention = (
                self._latent_attention() if self.family.latent else self._attention(index)
            )
            linears = found + linears
            other += more
        if branches == 2 or kind in ("mlp", "moe"):
            after, experts = feed_forward(self, self.model_type, self.hidden, index, kind)
            linears = linears + after
        if experts:
            experts = replace(
                experts, linears=tuple(self._as_stored(each, index) for each in experts.linears)
            )
        stored = tuple(self._as_stored(linear, index) for linear in linears)
        return Layer(1, stored, other, attention, recurrence, experts, branches)

    def _recurrent(self) -> RecurrentLayer:
        if self.family.recurrent == "mamba":
            return mamba(self, self.hidden, hybrid=self.model_type == "jamba")
        if self.family.recurrent == "mamba2":
            return mamba2(self, self.hidden, MAMBA2[self.model_type])
        return gated_delta(self, self.hidden)

    def _as_stored(self, linear: Linear, index: int) -> Linear:
        """Not quantised, if the checkpoint left it out."""
        return replace(
            linear, quantised=linear.quantised and not self._unquantised.has(linear.name, index)
        )

    def _stated_kinds(self) -> list[str]:
        """What the file says of every layer, if it does."""
        kinds: list[Any] = self.items("layer_types") or self.items("layers_block_type")
        known: tuple[str, ...] = (
            (*LAYER_TYPES, "hybrid") if self.model_type == "falcon_h1" else LAYER_TYPES
        )
        if self.model_type == "nemotron_h":
            known = (*LAYER_TYPES, "mlp", "moe")
            pattern = self.raw.get("hybrid_override_pattern")
            if isinstance(pattern, str) and not kinds:
                kinds = [PATTERN.get(letter, letter) for letter in pattern[: MOST_LAYERS + 1]]
            if not 0 < len(kinds) <= MOST_LAYERS:
                stated = (
                    f"hybrid_override_pattern must name 1 to {MOST_LAYERS} layers, got"
                    f" {short(pattern)}"
                )
                raise ModelLoadError(f"config.json: {stated}", hint=CHECK)
        kinds = [OLDER.get(str(kind), kind) for kind in kinds]
        for index, kind in enumerate(kinds):
            if kind not in known:
                self._refuse_kind(kind, index, known)
        return kinds

    def _refuse_kind(self, kind: object, index: int, known: tuple[str, ...]) -> NoReturn:
        raise ModelLoadError(
            f"config.json: layer_types says {short(kind)} of layer {index}",
            hint="known to the simulator: " + ", ".join(known),
        )

    def _layer_type(self, index: int) -> str | None:
        if self._kinds:
            if index >= len(self._kinds):
                self._refuse_kind(None, index, LAYER_TYPES)
            return self._kinds[index]
        if self.family.recurrent:
            return self._mixed_type(index)
        if self.model_type == "llama4_text":
            rotated = self.items(
                "no_rope_layers"
            )  # 1 for those that do rotate; the others see everything
            chunked = (
                rotated[index]
                if index < len(rotated)
                else (index + 1) % self.integer("no_rope_layer_interval", 4)
            )
            return "chunked_attention" if chunked else "full_attention"
        return None

    def _mixed_type(self, index: int) -> str:
        """Where layers with a state and those with attention take turns, or are one."""
        if self.model_type == "falcon_h1":
            return "hybrid"
        attends = False
        if self.model_type == "jamba":
            attends = self.is_turn(index, "attn_layer", period=8, offset=4)
        elif self.model_type == "bamba":
            attends = index in self.items("attn_layer_indices")
        elif self.family.recurrent == "delta":
            attends = (index + 1) % self.integer("full_attention_interval", 4) == 0
        return "full_attention" if attends else "linear_attention"

    def _window(self, index: int) -> int | None:
        window = self.integer("sliding_window", 0, least=0) or None
        kind = self._layer_type(index)
        if kind == "chunked_attention":  # at most: a chunk begins empty
            return self.optional("attention_chunk_size")
        if window is None or kind == "full_attention":
            return None
        if kind is not None or self.model_type in ("mistral", "mixtral", "phi3"):
            return window
        if self.model_type in ("gemma2", "gpt_oss"):
            return window if index % 2 == 0 else None
        if self.model_type == "gemma3_text":
            return window if (index + 1) % self.integer("sliding_window_pattern", 6) else None
        if self.flag("use_sliding_window"):
            return window if index >= self.integer("max_window_layers", 28, least=0) else None
        return None

    def _bias(self, fixed: bool | None) -> bool:
        return self.flag("attention_bias") if fixed is None else fixed

    def _attention(self, index: int) -> tuple[list[Linear], int, Attention]:
        older = self.optional("attention_head_dim") if self.model_type == "nemotron_h" else None
        head_dim = self.integer(
            "head_dim", older or self.family.head_dim or self.hidden // self.heads
        )
        query, kv = self.heads * head_dim, self.kv_heads * head_dim
        gated = (
            2 if self.family.recurrent == "delta" else 1
        )  # a gate of the query's size comes with it
        parts = (Part(gated * query, self.heads), Part(kv, self.kv_heads), Part(kv, self.kv_heads))
        linears = [
            Linear("qkv", parts, self.hidden, bias=self._bias(self.family.qkv_bias)),
            Linear(
                "attention_output",
                whole(self.hidden),
                query,
                self.heads,
                bias=self._bias(self.family.output_bias),
            ),
        ]
        normed = self.family.qk_norm or (self.model_type == "glm4_moe" and self.flag("use_qk_norm"))
        other = 2 * head_dim * normed
        other += self.heads * (self.model_type == "gpt_oss")  # one attention sink per head
        return (
            linears,
            other,
            Attention(self.heads, self.kv_heads, head_dim, head_dim, self._window(index)),
        )

    def _latent_attention(self) -> tuple[list[Linear], int, Attention]:
        """DeepSeek-V2 (arXiv:2405.04434), sections 2.1 and 3.1.2."""
        rank, rope = self.integer("kv_lora_rank"), self.integer("qk_rope_head_dim")
        plain, value = self.integer("qk_nope_head_dim"), self.integer("v_head_dim")
        bias = self._bias(None)
        queries = Part(self.heads * (plain + rope), self.heads)
        other = rank
        if query_rank := self.optional("q_lora_rank"):
            down = Linear(
                "query_kv_down", (*whole(query_rank), *whole(rank + rope)), self.hidden, bias=bias
            )
            linears = [down, Linear("query_up", (queries,), query_rank)]
            other += query_rank
        else:
            linears = [Linear("query_kv_down", (queries, *whole(rank + rope)), self.hidden)]
        linears.append(Linear("kv_up", (Part(self.heads * (plain + value), self.heads),), rank))
        linears.append(
            Linear(
                "attention_output", whole(self.hidden), self.heads * value, self.heads, bias=bias
            )
        )
        attention = Attention(self.heads, self.heads, plain + rope, value, None, rank + rope, rank)
        return linears, other, attention
