"""The architecture of a decoder-only model, read from a Hugging Face ``config.json``. Torch-free
(the simulator uses it too).

Older files write ``rope_theta`` and ``rope_scaling``, those of transformers 5 ``rope_parameters``;
both are read. Whatever the models here would compute differently from the reference implementation
is refused, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from twostroke.core.errors import InvalidRequestError, ModelLoadError
from twostroke.core.sampling_params import SamplingParams

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

RopeKind = Literal["default", "linear", "llama3", "yarn"]
_REFUSED_ROPE = {
    "dynamic": (
        "its angles change with the length of the request, so keys already in the cache would"
        " become wrong"
    ),
    "longrope": "its per-dimension factors are not implemented",
    "su": "its per-dimension factors are not implemented",
}

_SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) and how it was stretched beyond the length it was
    trained for.

    Attributes:
        kind: ``linear`` divides positions by ``factor``; ``llama3`` and ``yarn`` (Peng et al. 2023)
            stretch the low frequencies only.
        original_length: Context length before stretching (llama3, yarn).
        attention_factor: Multiplies cosines and sines (yarn); ``None`` is the paper's ``0.1
            ln(factor) + 1``.
        truncate: Whether yarn rounds the bounds of its ramp to whole dimensions.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything about a checkpoint but its weights.

    Attributes:
        head_dim: Elements of one head; ``num_heads * head_dim`` need not be ``hidden_size``.
        max_position_embeddings: Context length in tokens, as the checkpoint states it.
        sliding_windows: Per layer, how many of the latest tokens a token sees (itself included);
            ``None`` is all.
        qkv_bias: Whether the query, key and value projections have a bias; ``output_bias``: the
            attention's output.
        qk_norm: Whether each query and key head is normalized before the rotation.
        dtype: Precision of the stored weights, where the file says it.
        eos_token_ids: From ``generation_config.json`` and ``config.json`` together, in that order.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    sliding_windows: tuple[int | None, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    dtype: str | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.sliding_windows:
            object.__setattr__(self, "sliding_windows", (None,) * self.num_layers)
        if self.num_heads % self.num_kv_heads:
            raise _invalid(
                f"num_attention_heads ({self.num_heads}) is no multiple of num_key_value_heads"
                f" ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise _invalid(f"head_dim must be even for rotary embeddings, got {self.head_dim}")
        if len(self.sliding_windows) != self.num_layers:
            raise _invalid(
                f"layer_types has {len(self.sliding_windows)} entries for {self.num_layers} layers"
            )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read ``config.json`` and, where present, ``generation_config.json``.

        Raises:
            ModelLoadError: A file is missing or unreadable, the architecture is unknown, or a value
                is invalid.
        """
        path = folder / "config.json"
        if not path.is_file():
            hint = "give a Hugging Face checkpoint folder: config.json and safetensors"
            raise ModelLoadError(f"{folder} has no config.json", hint=hint)
        generation_path = folder / "generation_config.json"
        generation = _read_json(generation_path) if generation_path.is_file() else {}
        return cls.from_dict(_read_json(path), generation)

    @staticmethod
    def sampling_defaults(folder: Path) -> dict[str, float]:
        """What ``generation_config.json`` recommends, as fields of ``SamplingParams``; like vLLM,
        we take these five.

        Raises:
            ModelLoadError: A value is out of range.
        """
        path = folder / "generation_config.json"
        raw = _read_json(path) if path.is_file() else {}
        found = {name: raw[name] for name in _SAMPLING_DEFAULTS if raw.get(name) is not None}
        try:
            SamplingParams(**found)
        except InvalidRequestError as error:
            hint = "mend the file, or start with --generation-config vllm"
            raise ModelLoadError(f"{path}: {error.message}", hint=hint) from error
        return found

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Parse the contents of ``config.json`` (and ``generation_config.json``). Raises
        ModelLoadError.
        """
        model_type = raw.get("model_type")
        if model_type not in SUPPORTED_MODEL_TYPES:
            raise ModelLoadError(
                f"unknown architecture: model_type is {model_type!r}",
                hint="supported architectures: " + ", ".join(SUPPORTED_MODEL_TYPES),
            )
        _refuse_unsupported(raw)
        num_heads = _integer(raw, "num_attention_heads")
        num_layers = _integer(raw, "num_hidden_layers")
        max_length = _integer(raw, "max_position_embeddings")
        hidden_size = _integer(raw, "hidden_size")
        return cls(
            model_type=model_type,
            vocab_size=_integer(raw, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(raw, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_integer(raw, "num_key_value_heads", _default_kv_heads(raw, num_heads)),
            head_dim=_integer(
                raw, "head_dim", 128 if model_type == "qwen3" else hidden_size // num_heads
            ),
            max_position_embeddings=max_length,
            rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
            rope=_parse_rope(raw, max_length),
            sliding_windows=_parse_windows(model_type, raw, num_layers),
            qkv_bias=True if model_type == "qwen2" else _boolean(raw, "attention_bias"),
            output_bias=model_type != "qwen2" and _boolean(raw, "attention_bias"),
            mlp_bias=_boolean(raw, "mlp_bias"),
            qk_norm=model_type == "qwen3",
            tie_word_embeddings=_boolean(raw, "tie_word_embeddings"),
            dtype=_parse_dtype(raw),
            eos_token_ids=_parse_eos(generation or {}, raw),
        )

    @property
    def context_length(self) -> int:
        """Longest request in tokens. Yarn checkpoints may state the length before stretching; this
        is the one after.
        """
        if self.rope.kind == "yarn":
            return max(
                self.max_position_embeddings, int(self.rope.original_length * self.rope.factor)
            )
        return self.max_position_embeddings

    @property
    def num_parameters(self) -> int:
        """Weights and biases, with tied embeddings counted once."""
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = (
            self.hidden_size * (2 * query + 2 * kv) + 3 * self.hidden_size * self.intermediate_size
        )
        layer += 2 * self.hidden_size
        layer += (query + 2 * kv) * self.qkv_bias + self.hidden_size * self.output_bias
        layer += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        layer += 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    def weight_bytes(self, dtype_bytes: int, quantization: str | None = None) -> int:
        """Bytes of all weights at ``dtype_bytes`` each, or with those of the linear layers in int8
        or int4.

        int4 has a float32 scale per 32 weights. With tied embeddings the head is a rounded copy.
        """
        if quantization is None:
            return self.num_parameters * dtype_bytes
        table = self.vocab_size * self.hidden_size
        linear = self.num_parameters - table + (table if self.tie_word_embeddings else 0)
        bits = {"int8": 8, "int4": 5}[quantization]
        return table * dtype_bytes + linear * bits // 8

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes


def _invalid(message: str) -> ModelLoadError:
    return ModelLoadError(
        f"config.json: {message}", hint="check the checkpoint; its config.json does not describe it"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"cannot read {path}: {error}", hint="download or copy the checkpoint again"
        ) from error
    if not isinstance(value, dict):
        raise ModelLoadError(
            f"{path} holds no JSON object", hint="download or copy the checkpoint again"
        )
    return value


def _integer(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if value is None:
        raise _invalid(f"{name} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _invalid(f"{name} must be a positive integer, got {value!r}")
    return value


def _number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = raw.get(name)
    if value is None:
        value = default
    if value is None:
        raise _invalid(f"{name} is missing")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise _invalid(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _boolean(raw: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _invalid(f"{name} must be true or false, got {value!r}")
    return value


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise _invalid(f"{name} must be an object, got {value!r}")
    return value


def _default_kv_heads(raw: Mapping[str, Any], num_heads: int) -> int:
    """As transformers: an explicit null is one per query head; Mistral's configuration alone
    defaults to 8.
    """
    return 8 if raw["model_type"] == "mistral" and "num_key_value_heads" not in raw else num_heads


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(
            f"unsupported activation: hidden_act is {activation!r}",
            hint="only silu (SwiGLU) models are supported",
        )
    if quantization := _mapping(raw, "quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise ModelLoadError(
            f"the checkpoint is quantized ({method}), which is not supported",
            hint="use the bfloat16, float16 or float32 version of this model",
        )


def _parse_rope(raw: Mapping[str, Any], max_length: int) -> RopeConfig:
    scaling = _mapping(raw, "rope_parameters") or _mapping(raw, "rope_scaling")
    theta = _number(scaling, "rope_theta", _number(raw, "rope_theta", 10000.0))
    kind: Any = scaling.get("rope_type", scaling.get("type")) or "default"
    for source in (raw, scaling):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise _invalid(
                f"partial_rotary_factor {source['partial_rotary_factor']} is not supported"
            )
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind not in ("linear", "llama3", "yarn"):
        reason = _REFUSED_ROPE.get(str(kind), "it is unknown")
        raise ModelLoadError(
            f"unsupported rope scaling {kind!r}: {reason}",
            hint="supported: default, linear, llama3, yarn",
        )
    original = _integer(scaling, "original_max_position_embeddings", max_length)
    default_factor = max_length / original if kind == "yarn" else None
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=_number(scaling, "factor", default_factor),
        original_length=original,
        low_freq_factor=_number(scaling, "low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=_number(scaling, "high_freq_factor", None if kind == "llama3" else 4.0),
        beta_fast=_number(scaling, "beta_fast", 32.0),
        beta_slow=_number(scaling, "beta_slow", 1.0),
        attention_factor=_attention_factor(scaling),
        truncate=_boolean(scaling, "truncate", True),
    )


def _attention_factor(scaling: Mapping[str, Any]) -> float | None:
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        raise _invalid("rope scaling with mscale and mscale_all_dim is not supported")
    return None if scaling.get("attention_factor") is None else _number(scaling, "attention_factor")


def _parse_windows(
    model_type: str, raw: Mapping[str, Any], num_layers: int
) -> tuple[int | None, ...]:
    """Mistral: one window for all layers. Qwen: from layer ``max_window_layers`` on, only with
    use_sliding_window.
    """
    if model_type == "llama":
        return (None,) * num_layers
    # transformers assumes 4096 where the key is absent, and no window where it is null.
    window = (
        None if raw.get("sliding_window", 4096) is None else _integer(raw, "sliding_window", 4096)
    )
    if model_type == "mistral":
        return (window,) * num_layers
    if not _boolean(raw, "use_sliding_window"):
        window = None
    layer_types = raw.get("layer_types")
    if layer_types is None:
        first = raw.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise _invalid(f"max_window_layers must be an integer, got {first!r}")
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(layer_types, list):
        raise _invalid(f"layer_types must be a list, got {layer_types!r}")
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise _invalid(
            f"layer_types holds {sorted(unknown)}; known: full_attention, sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def _parse_dtype(raw: Mapping[str, Any]) -> str | None:
    value = raw.get("dtype", raw.get("torch_dtype"))
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    return name if name in DTYPE_BYTES else None


def _parse_eos(*sources: Mapping[str, Any]) -> tuple[int, ...]:
    tokens: dict[int, None] = {}
    for source in sources:
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool):
                tokens[token] = None
            elif token is not None:
                raise _invalid(f"eos_token_id must be token ids, got {value!r}")
    return tuple(tokens)
