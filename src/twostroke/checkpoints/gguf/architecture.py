"""How an architecture of llama.cpp becomes one of Hugging Face: the form of a row of its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Tensors outside the layers.
ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# Of a layer, as Llama names them.
LAYER = {**ATTENTION, **MLP, "ffn_norm": "post_attention_layernorm"}
ROUTED = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# Fields of ``config.json`` by the tensors that tell them, and by their keys.
BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}
EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
SHARED_EXPERTS = {
    **EXPERTS,
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
GRANITE_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one of them becomes a ``model_type``.

    Attributes:
        integers, numbers: Fields of ``config.json`` beside those of all, and their keys, less the
            architecture's name. A key that is missing states nothing.
        stated: What every model of it has in its ``config.json``.
        flag_tensors: Flags of ``config.json``, each set where some layer has the tensor named here.
        layers: What the names of a layer's tensors begin with.
        layer: Names of a layer's tensors; ``{}`` is the index of an expert, whose tensors lie in
            one.
        scales: Names of a layer's tensors that files call the ``scale`` of another.
        pairs: Two of a layer's tensors that are one at Hugging Face, where the rows of the first
            come first: its name, for theirs.
        ends: Names of the tensors outside the layers.
        taps: Names in files of a convolution's weights, which lack the dimension of one input.
        attends: Some layers have attention.
        unattending: Kind, in ``layer_types``, of layers that have no key-value heads by the file's
            list of their numbers; empty: all have some.
        feeding: Kind of layers that consist of an MLP or experts alone, by the file's list of
            their sizes; empty: there is none.
        latent: Attention is DeepSeek's; see ``latent_models``.
        delta: Some layers have linear attention; see ``delta_models``.
        mamba: Some layers are Mamba-2; see ``mamba_models``.
        gemma4: Sizes differ from layer to layer; see ``gemma4_models``.
        sigmoid: Tokens find their experts as in DeepSeek-V3; see ``expert_routing``.
        longrope: It may have factors for short and for long contexts, one for each frequency.
        interleaved: Rows of queries and keys are reordered, so that pairs that rotate are
            neighbours.
        norm_shift: What was added to the weights of norms.
        large_layers: A model of this many layers divides scores by the root of hidden size over
            heads, others of a head's size (Gemma).
        unnormed_experts: A model of this many experts does not norm queries and keys (Llama 4).
        norm_eps: Field of the norms' epsilon, and its keys, of which the first that is there
            counts.
        truncated: Where yarn begins and ends is rounded to whole frequencies.
    """

    model_type: str
    integers: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    flag_tensors: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers.{}."
    layer: Mapping[str, str] = field(default_factory=lambda: LAYER)
    scales: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=lambda: ENDS)
    taps: tuple[str, ...] = ()
    attends: bool = True
    unattending: str = ""
    feeding: str = ""
    latent: bool = False
    delta: bool = False
    mamba: bool = False
    gemma4: bool = False
    sigmoid: bool = False
    longrope: bool = False
    interleaved: bool = False
    norm_shift: float = 0.0
    large_layers: int = 0
    unnormed_experts: int = 0
    norm_eps: tuple[str, ...] = ("rms_norm_eps", "attention.layer_norm_rms_epsilon")
    truncated: bool = True


def without(names: Mapping[str, str], *dropped: str) -> dict[str, str]:
    return {name: target for name, target in names.items() if name not in dropped}
