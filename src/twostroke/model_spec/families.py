"""One table of how model types differ from Llama, as their ``config.json`` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# Kinds of layers in ``layer_types``.
ATTENDING = ("full_attention", "sliding_attention")
WITH_STATES = (*ATTENDING, "linear_attention")
# Which layers see a window only; see ``attention_layers.window_of``.
WindowRule = Literal["none", "all", "even", "pattern", "upper", "stated"]


@dataclass(frozen=True, slots=True)
class Family:
    """How a model_type differs from Llama.

    Attributes:
        qkv_bias: ``None`` reads ``attention_bias``; ``output_bias`` the same.
        qk_norm: Norms over each query and key head.
        norms: Norms of the hidden size in a layer.
        head_dim: Default where the file says nothing and it is not hidden size over heads.
        kv_heads: Default where the file does not name them; 0 is as many as query heads.
        tied: Default of ``tie_word_embeddings``.
        latent: Multi-head latent attention.
        recurrent: What layers have that keep a state: ``delta`` (then attention has a gate),
            ``mamba`` or ``mamba2``.
        unbounded: No layer has attention, and nothing limits the context.
        windows: Which layers see a window only; ``window`` is its default length.
        kinds: Kinds of layers that ``layer_types`` may name.
        activation: Field that names the activation, and its default.
        defaults: Fields that published files leave to the class in transformers.
    """

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    norms: int = 2
    head_dim: int | None = None
    kv_heads: int = 0
    tied: bool = False
    latent: bool = False
    recurrent: str = ""
    unbounded: bool = False
    windows: WindowRule = "stated"
    window: int | None = None
    kinds: tuple[str, ...] = ATTENDING
    activation: tuple[str, str] = ("hidden_act", "silu")
    defaults: Mapping[str, int] = field(default_factory=dict)


_GELU = ("hidden_activation", "gelu_pytorch_tanh")
FAMILIES = {
    "llama": Family(windows="none"),
    "mistral": Family(qkv_bias=False, output_bias=False, kv_heads=8, windows="all", window=4096),
    "qwen2": Family(qkv_bias=True, output_bias=False, windows="upper", window=4096),
    "qwen3": Family(qk_norm=True, head_dim=128, windows="upper", window=4096),
    "phi3": Family(qkv_bias=False, output_bias=False, windows="all"),
    "granite": Family(),
    "gemma2": Family(norms=4, head_dim=256, tied=True, windows="even", activation=_GELU),
    "gemma3_text": Family(
        qk_norm=True,
        norms=4,
        head_dim=256,
        tied=True,
        windows="pattern",
        window=4096,
        activation=_GELU,
        # Files of the multimodal models state what is another.
        defaults={
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        },
    ),
    "mixtral": Family(qkv_bias=False, output_bias=False, kv_heads=8, windows="all"),
    "qwen2_moe": Family(qkv_bias=True, output_bias=False, windows="upper", window=4096),
    "qwen3_moe": Family(qk_norm=True, windows="upper", window=4096),
    "gpt_oss": Family(qkv_bias=True, output_bias=True, head_dim=64, windows="even"),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": Family(latent=True),
    "glm4_moe": Family(output_bias=False),
    "llama4_text": Family(head_dim=128, kinds=(*ATTENDING, "chunked_attention")),
    "qwen3_next": Family(qk_norm=True, head_dim=256, recurrent="delta", kinds=WITH_STATES),
    "qwen3_5_text": Family(qk_norm=True, head_dim=256, recurrent="delta", kinds=WITH_STATES),
    "qwen3_5_moe_text": Family(qk_norm=True, head_dim=256, recurrent="delta", kinds=WITH_STATES),
    "jamba": Family(
        qkv_bias=False, output_bias=False, kv_heads=8, recurrent="mamba", kinds=WITH_STATES
    ),
    "nemotron_h": Family(
        qkv_bias=False,
        output_bias=False,
        norms=1,
        head_dim=128,
        kv_heads=8,
        recurrent="mamba2",
        kinds=(*WITH_STATES, "mlp", "moe"),
        activation=("mlp_hidden_act", "relu2"),
    ),
    "granitemoehybrid": Family(recurrent="mamba2", kinds=WITH_STATES),
    "falcon_h1": Family(kv_heads=8, recurrent="mamba2", kinds=(*WITH_STATES, "hybrid")),
    "bamba": Family(kv_heads=8, recurrent="mamba2", kinds=WITH_STATES),
    "mamba2": Family(norms=1, recurrent="mamba2", unbounded=True, kinds=WITH_STATES),
    "mamba": Family(norms=1, tied=True, recurrent="mamba", unbounded=True, kinds=WITH_STATES),
}
# Other names of the same architectures.
SAME = {
    "kimi_k2": "deepseek_v3",
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "falcon_mamba": "mamba",
}
