"""Model sheets from Hugging Face ``config.json`` files: one function per kind of layer, one table of differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from twostroke.errors import ModelLoadError
from twostroke.simulator.model_sheet import Attention, Experts, Layer, Linear, ModelSheet, Part, Recurrence
from twostroke.simulator.number_formats import stored_format
from twostroke.simulator.unquantised import Unquantised


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
        hybrid: Most layers have linear attention; the others a gate on what attention gives.
    """

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    norms: int = 2
    head_dim: int | None = None
    tied: bool = False
    latent: bool = False
    hybrid: bool = False


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
    "qwen3_next": Family(qk_norm=True, head_dim=256, hybrid=True),
    "qwen3_5_text": Family(qk_norm=True, head_dim=256, hybrid=True),
    "qwen3_5_moe_text": Family(qk_norm=True, head_dim=256, hybrid=True),
}
# Other names of the same architectures.
SAME = {
    "kimi_k2": "deepseek_v3",
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Kinds of layers in ``layer_types``, and older names of them.
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
OLDER = {"attention": "full_attention"}
# Bounds of what a file may state: no model is near them, and below them no count overflows or takes long.
MOST, MOST_LAYERS = 2**31, 10_000
CHECK = "check the file: it should be the config.json of a Hugging Face checkpoint"


def read_model(path: Path) -> ModelSheet:
    """Read ``config.json``, given as the file or as its folder. Raises ModelLoadError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        hint = "give a config.json of a Hugging Face checkpoint, or its folder"
        raise ModelLoadError(f"cannot read {file}: {error}", hint=hint) from error
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{file} holds no JSON object", hint="give a config.json of a Hugging Face checkpoint")
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
            f"unknown architecture: model_type is {raw.get('model_type')!r}",
            hint="known to the simulator: " + ", ".join([*FAMILIES, *SAME]),
        )
    reader = _Reader(model_type, FAMILIES[model_type], raw)
    hidden, vocabulary = reader.integer("hidden_size"), reader.integer("vocab_size")
    layers = [reader.layer(index) for index in range(reader.integer("num_hidden_layers", most=MOST_LAYERS))]
    return ModelSheet(
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=tuple(Layer(sum(1 for _ in same), *parts) for parts, same in groupby(layers)),
        head=Linear("head", (Part(vocabulary, vocabulary),), hidden, quantised=False),
        tied=reader.flag("tie_word_embeddings", reader.family.tied),
        other_parameters=hidden,
        max_length=reader.integer("max_position_embeddings", 4096),
        format=stored_format(raw),
    )


# The fields of Layer after its count.
_Parts = tuple[tuple[Linear, ...], int, Attention | None, Recurrence | None, Experts | None]


class _Reader:
    """Reads the layers of one file."""

    def __init__(self, model_type: str, family: Family, raw: Mapping[str, Any]) -> None:
        self.model_type = model_type
        self.family = family
        self.raw = raw
        self.hidden = self.integer("hidden_size")
        self.heads = self.integer("num_attention_heads")
        default = 8 if model_type in ("mistral", "mixtral") else self.heads
        self.kv_heads = self.integer("num_key_value_heads", default)
        if self.heads % self.kv_heads:
            raise ModelLoadError(
                f"config.json: {self.heads} attention heads cannot share {self.kv_heads} key-value heads", hint=CHECK
            )
        self._unquantised = Unquantised(raw)

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """A number between bounds; ``null`` is as good as missing. Raises ModelLoadError."""
        value = self.raw.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelLoadError(f"config.json: {name} must be an integer, got {_short(value)}", hint=CHECK)
        if not least <= value <= most:
            raise ModelLoadError(f"config.json: {name} must be from {least} to {most}, got {_short(value)}", hint=CHECK)
        return value

    def optional(self, name: str) -> int | None:
        """The same where nothing is a value of its own."""
        return None if self.raw.get(name) is None else self.integer(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"config.json: {name} must be true or false, got {_short(value)}", hint=CHECK)
        return value

    def items(self, name: str) -> list[Any]:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, list):
            raise ModelLoadError(f"config.json: {name} must be a list, got {_short(value)}", hint=CHECK)
        return value or []

    def layer(self, index: int) -> _Parts:
        other = self.family.norms * self.hidden
        attention: Attention | None = None
        recurrence: Recurrence | None = None
        if self._layer_type(index) == "linear_attention":
            linears, more, recurrence = self._linear_attention()
        elif self.family.latent:
            linears, more, attention = self._latent_attention()
        else:
            linears, more, attention = self._attention(index)
        after, experts = self._feed_forward(index)
        stored = tuple(self._as_stored(linear, index) for linear in (*linears, *after))
        if experts:
            experts = replace(experts, linears=tuple(self._as_stored(each, index) for each in experts.linears))
        return stored, other + more, attention, recurrence, experts

    def _as_stored(self, linear: Linear, index: int) -> Linear:
        """Not quantised, if the checkpoint left it out."""
        return replace(linear, quantised=linear.quantised and not self._unquantised.has(linear.name, index))

    def _layer_type(self, index: int) -> str | None:
        types = self.items("layer_types")
        if types:
            kind = types[index] if index < len(types) else None
            kind = OLDER.get(str(kind), kind)
            if kind not in LAYER_TYPES:
                raise ModelLoadError(
                    f"config.json: layer_types says {_short(kind)} of layer {index}",
                    hint="known to the simulator: " + ", ".join(LAYER_TYPES),
                )
            return str(kind)
        if self.family.hybrid:
            interval = self.integer("full_attention_interval", 4)
            return "linear_attention" if (index + 1) % interval else "full_attention"
        if self.model_type == "llama4_text":
            rotated = self.items("no_rope_layers")  # 1 for those that do rotate; the others see everything
            chunked = (
                rotated[index] if index < len(rotated) else (index + 1) % self.integer("no_rope_layer_interval", 4)
            )
            return "chunked_attention" if chunked else "full_attention"
        return None

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
        head_dim = self.integer("head_dim", self.family.head_dim or self.hidden // self.heads)
        query, kv = self.heads * head_dim, self.kv_heads * head_dim
        gated = 2 if self.family.hybrid else 1  # a gate of the query's size comes with it
        parts = (Part(gated * query, self.heads), Part(kv, self.kv_heads), Part(kv, self.kv_heads))
        linears = [
            Linear("qkv", parts, self.hidden, bias=self._bias(self.family.qkv_bias)),
            Linear(
                "attention_output", _whole(self.hidden), query, self.heads, bias=self._bias(self.family.output_bias)
            ),
        ]
        normed = self.family.qk_norm or (self.model_type == "glm4_moe" and self.flag("use_qk_norm"))
        other = 2 * head_dim * normed
        other += self.heads * (self.model_type == "gpt_oss")  # one attention sink per head
        return linears, other, Attention(self.heads, self.kv_heads, head_dim, head_dim, self._window(index))

    def _latent_attention(self) -> tuple[list[Linear], int, Attention]:
        """DeepSeek-V2 (arXiv:2405.04434), sections 2.1 and 3.1.2."""
        rank, rope = self.integer("kv_lora_rank"), self.integer("qk_rope_head_dim")
        plain, value = self.integer("qk_nope_head_dim"), self.integer("v_head_dim")
        bias = self._bias(None)
        queries = Part(self.heads * (plain + rope), self.heads)
        other = rank
        if query_rank := self.optional("q_lora_rank"):
            down = Linear("query_kv_down", (*_whole(query_rank), *_whole(rank + rope)), self.hidden, bias=bias)
            linears = [down, Linear("query_up", (queries,), query_rank)]
            other += query_rank
        else:
            linears = [Linear("query_kv_down", (queries, *_whole(rank + rope)), self.hidden)]
        linears.append(Linear("kv_up", (Part(self.heads * (plain + value), self.heads),), rank))
        linears.append(Linear("attention_output", _whole(self.hidden), self.heads * value, self.heads, bias=bias))
        attention = Attention(self.heads, self.heads, plain + rope, value, None, rank + rope, rank)
        return linears, other, attention

    def _linear_attention(self) -> tuple[list[Linear], int, Recurrence]:
        """Gated delta rule (arXiv:2412.06464) as in Qwen3-Next."""
        key_heads, value_heads = self.integer("linear_num_key_heads", 16), self.integer("linear_num_value_heads", 32)
        key_dim, value_dim = self.integer("linear_key_head_dim", 128), self.integer("linear_value_head_dim", 128)
        keys, values = key_heads * key_dim, value_heads * value_dim
        kernel = self.integer("linear_conv_kernel_dim", 4)
        channels = 2 * keys + values
        linears = [
            Linear("state_input", (Part(2 * keys + 2 * values, key_heads),), self.hidden),
            Linear("state_gates", (Part(2 * value_heads, value_heads),), self.hidden, quantised=False),
            Linear("state_output", _whole(self.hidden), values, value_heads),
        ]
        state = value_heads * key_dim * value_dim
        # Decay, read, correct, write and query the state: four products of its size, two FLOPs each.
        flops = 8 * state + 2 * kernel * channels
        other = channels * kernel + 2 * value_heads + value_dim
        return linears, other, Recurrence(key_heads, state, channels * (kernel - 1), flops)

    def _feed_forward(self, index: int) -> tuple[list[Linear], Experts | None]:
        count = next(
            (
                self.integer(name)
                for name in ("num_local_experts", "n_routed_experts", "num_experts")
                if self.raw.get(name)
            ),
            0,
        )
        if not count or not self._is_sparse(index):
            name = "intermediate_size_mlp" if self.model_type == "llama4_text" else "intermediate_size"
            return list(self._mlp("mlp", self.integer(name), self.flag("mlp_bias"))), None
        size = self.optional("moe_intermediate_size") or self.integer("intermediate_size")
        bias = self.model_type == "gpt_oss"
        linears = [Linear("router", _whole(count), self.hidden, bias=bias, quantised=False)]
        shared = self.integer("n_shared_experts", 0, least=0) * size
        shared = shared or self.integer("shared_expert_intermediate_size", 0, least=0)
        shared = size if self.model_type == "llama4_text" else shared
        if shared and self.model_type != "qwen3_moe":
            linears += self._mlp("shared_expert", shared, False)
            if self.model_type.startswith("qwen"):
                linears.append(Linear("shared_expert_gate", _whole(1), self.hidden, quantised=False))
        default = {"mixtral": 2, "llama4_text": 1}.get(self.model_type, 4)
        chosen = self.integer("num_experts_per_tok", default, most=count)
        return linears, Experts(count, chosen, self._mlp("expert", size, bias))

    def _is_sparse(self, index: int) -> bool:
        if self.model_type == "llama4_text":
            chosen = self.items("moe_layers")
            return index in chosen if chosen else (index + 1) % self.integer("interleave_moe_layer_step", 1) == 0
        if self.family.latent or self.model_type == "glm4_moe":
            every = self.integer("moe_layer_freq", 1)
            return index >= self.integer("first_k_dense_replace", 0, least=0) and index % every == 0
        if index in self.items("mlp_only_layers"):
            return False
        return (index + 1) % self.integer("decoder_sparse_step", 1) == 0

    def _mlp(self, name: str, size: int, bias: bool) -> tuple[Linear, Linear]:
        gate_up = (Part(size, size), Part(size, size))
        return (
            Linear(f"{name}_gate_up", gate_up, self.hidden, bias=bias),
            Linear(f"{name}_down", _whole(self.hidden), size, size, bias=bias),
        )


def _whole(outputs: int) -> tuple[Part, ...]:
    """Outputs that every rank computes all of."""
    return (Part(outputs, 1),)


def _short(value: object) -> str:
    """A value as an error message shows it: a file may hold a book."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return text if len(text) <= 60 else text[:57] + "..."
