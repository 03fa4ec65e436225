"""One table of how model types differ from Llama, as their ``config.json`` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

# Kinds of layers in ``layer_types``.
ATTENDING = ("full_attention", "sliding_attention")
WITH_STATES = (*ATTENDING, "linear_attention")
# Which layers see a window only; see ``attention_layers.window_of``.
WindowRule = Literal["none", "all", "even", "pattern", "upper", "unrotated", "stated"]


@dataclass(frozen=True, slots=True)
class Family:
    """How a model_type differs from Llama.

    Attributes:
        qkv_bias: Whether queries, keys and values have one; ``None`` reads ``attention_bias``.
        output_bias: Whether the output has one; ``None`` reads ``attention_bias``.
        qk_norm: Norms over each query and key head.
        norms: Norms of the hidden size in a layer.
        head_dim: Default where the file says nothing and it is not hidden size over heads.
        kv_heads: Default where the file does not name them; 0 is as many as query heads.
        tied: Default of ``tie_word_embeddings``.
        latent: Multi-head latent attention.
        recurrent: What layers have that keep a state: ``delta`` (then attention has a gate),
            ``mamba``, ``mamba2``, ``convolution`` or ``lightning``.
        unbounded: No layer has attention, and nothing limits the context.
        windows: Which layers see a window only; ``window`` is its default length. Of ``pattern``
            layers, the last sees everything.
        kinds: Kinds of layers that ``layer_types`` may name.
        activation: Field that names the activation, and its default.
        norm_eps: Field that names the norms' epsilon, and its default.
        parallel: A layer's branches read the same hidden state, normed once.
        interleaved: Rotation pairs neighbours, not element i with i + width / 2.
        rotated: Which layers rotate queries and keys: all, none, those with a window, or those
            that ``no_rope_layers`` does not exclude; ``typed``: all if ``position_embedding_type``
            is ``rope``.
        theta: Default of ``rope_theta``.
        partial: Part of a head may be rotated alone.
        local_theta: Default of ``rope_local_base_freq``, the angles' base in layers with a window,
            which stretch nothing; 0: they rotate as the others do, ``None``: from the same base.
        whole_norm: Queries and keys are normalized over all heads together.
        scale: Field of what scores are divided by the root of, and its default; the default
            always where the name is empty.
        multipliers: Whether ``attention_multiplier`` and the like scale scores, additions,
            embeddings and logits.
        inner_multipliers: Whether much within a layer is multiplied, see ``Multipliers``.
        root_scaled: Embeddings are multiplied with the root of the hidden size.
        soft_caps: Scores and logits may be bounded.
        experts: Layers may have experts in place of an MLP.
        defaults: Fields that published files leave to the class in transformers.
        rotations: What stands for ``rope_parameters`` where the file has none.
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
    pattern: int = 6
    kinds: tuple[str, ...] = ATTENDING
    activation: tuple[str, str] = ("hidden_act", "silu")
    norm_eps: tuple[str, float] = ("rms_norm_eps", 1e-6)
    parallel: bool = False
    interleaved: bool = False
    rotated: Literal["all", "none", "window", "stated", "typed"] = "all"
    theta: float = 10_000.0
    local_theta: float | None = 0.0
    partial: bool = False
    whole_norm: bool = False
    scale: tuple[str, float] | None = None
    multipliers: bool = False
    inner_multipliers: bool = False
    root_scaled: bool = False
    soft_caps: bool = False
    experts: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)
    rotations: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)


_GELU = ("hidden_activation", "gelu_pytorch_tanh")
_LAYER_NORM = ("layer_norm_epsilon", 1e-5)
_QUERY_SCALAR = ("query_pre_attn_scalar", 256.0)
_DELTA = Family(
    experts=True,
    qk_norm=True,
    head_dim=256,
    recurrent="delta",
    kinds=WITH_STATES,
    windows="none",
    partial=True,
    defaults={"partial_rotary_factor": 0.25},
)
FAMILIES = {
    "llama": Family(windows="none"),
    "mistral": Family(qkv_bias=False, output_bias=False, kv_heads=8, windows="all", window=4096),
    "qwen2": Family(qkv_bias=True, output_bias=False, windows="upper", window=4096),
    "qwen3": Family(qk_norm=True, head_dim=128, windows="upper", window=4096),
    "phi3": Family(
        qkv_bias=False,
        output_bias=False,
        windows="all",
        partial=True,
        defaults={"original_max_position_embeddings": 4096},
    ),
    "granite": Family(multipliers=True),
    "olmo2": Family(whole_norm=True, windows="none"),
    "olmo3": Family(
        whole_norm=True,
        windows="pattern",
        window=4096,
        pattern=4,
        theta=500_000.0,
        local_theta=None,
    ),
    "smollm3": Family(
        tied=True,
        windows="unrotated",
        rotated="stated",
        theta=2_000_000.0,
    ),
    "glm4": Family(
        output_bias=False,
        norms=4,
        windows="none",
        interleaved=True,
        partial=True,
        defaults={"attention_bias": True, "partial_rotary_factor": 0.5},
    ),
    "cohere2": Family(
        norms=1,
        tied=True,
        windows="pattern",
        window=4096,
        pattern=4,
        rotated="window",
        norm_eps=("layer_norm_eps", 1e-5),
        parallel=True,
        interleaved=True,
    ),
    "gemma2": Family(
        norms=4,
        head_dim=256,
        tied=True,
        windows="even",
        window=4096,
        activation=_GELU,
        scale=_QUERY_SCALAR,
        root_scaled=True,
        soft_caps=True,
        defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": Family(
        qk_norm=True,
        norms=4,
        head_dim=256,
        tied=True,
        windows="pattern",
        window=4096,
        activation=_GELU,
        theta=1_000_000.0,
        local_theta=10_000.0,
        soft_caps=True,
        scale=_QUERY_SCALAR,
        root_scaled=True,
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
    "gemma4_text": Family(
        qk_norm=True,
        norms=4,
        head_dim=256,
        tied=True,
        windows="pattern",
        window=512,
        activation=_GELU,
        theta=1_000_000.0,
        local_theta=10_000.0,
        soft_caps=True,
        scale=("", 1.0),
        root_scaled=True,
        experts=True,
        rotations={
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
        defaults={
            "vocab_size": 262_144,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        },
    ),
    "mixtral": Family(
        experts=True,
        qkv_bias=False,
        output_bias=False,
        kv_heads=8,
        windows="all",
        theta=1_000_000.0,
    ),
    "qwen2_moe": Family(
        experts=True, qkv_bias=True, output_bias=False, windows="upper", window=4096
    ),
    "qwen3_moe": Family(experts=True, qk_norm=True, windows="upper", window=4096),
    "gpt_oss": Family(
        qkv_bias=True,
        output_bias=True,
        head_dim=64,
        kv_heads=8,
        windows="even",
        window=128,
        theta=150_000.0,
        experts=True,
    ),
    "deepseek_v2": Family(latent=True, partial=True, experts=True, windows="none"),
    "deepseek_v3": Family(latent=True, partial=True, experts=True, windows="none"),
    "glm4_moe": Family(
        experts=True,
        output_bias=False,
        partial=True,
        defaults={"partial_rotary_factor": 0.5, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "llama4_text": Family(
        head_dim=128,
        kv_heads=8,
        kinds=(*ATTENDING, "chunked_attention"),
        windows="none",
        rotated="stated",
        interleaved=True,
        theta=500_000.0,
        norm_eps=("rms_norm_eps", 1e-5),
        experts=True,
    ),
    "qwen3_next": _DELTA,
    "qwen3_5_text": replace(_DELTA, experts=False),
    "qwen3_5_moe_text": _DELTA,
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
        norm_eps=_LAYER_NORM,
        rotated="none",
        windows="none",
        experts=True,
    ),
    "granitemoehybrid": Family(
        recurrent="mamba2",
        kinds=WITH_STATES,
        windows="none",
        multipliers=True,
        rotated="typed",
        experts=True,
    ),
    "lfm2": Family(
        qkv_bias=False,
        output_bias=False,
        qk_norm=True,
        kv_heads=8,
        tied=True,
        recurrent="convolution",
        kinds=(*WITH_STATES, "conv"),
        windows="none",
        norm_eps=("norm_eps", 1e-5),
        theta=1_000_000.0,
    ),
    "falcon_h1": Family(
        kv_heads=8,
        recurrent="mamba2",
        kinds=(*WITH_STATES, "hybrid"),
        windows="none",
        norm_eps=("rms_norm_eps", 1e-5),
        inner_multipliers=True,
    ),
    "bamba": Family(
        kv_heads=8,
        recurrent="mamba2",
        kinds=WITH_STATES,
        windows="none",
        norm_eps=("rms_norm_eps", 1e-5),
        partial=True,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "mamba2": Family(
        norms=1,
        recurrent="mamba2",
        unbounded=True,
        kinds=WITH_STATES,
        windows="none",
        norm_eps=_LAYER_NORM,
    ),
    "minimax": Family(
        qkv_bias=False,
        output_bias=False,
        recurrent="lightning",
        kinds=WITH_STATES,
        windows="none",
        partial=True,
        experts=True,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "minimax_m2": Family(
        qkv_bias=False,
        output_bias=False,
        whole_norm=True,
        windows="none",
        partial=True,
        experts=True,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "mamba": Family(norms=1, tied=True, recurrent="mamba", unbounded=True, kinds=WITH_STATES),
}
# Other names of the same architectures.
SAME = {
    **dict.fromkeys(("kimi_k2", "deepseek_v32", "glm_moe_dsa"), "deepseek_v3"),
    **dict.fromkeys(("minimax_m1", "minimax_text_01"), "minimax"),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "falcon_mamba": "mamba",
}
