"""What follows attention in a layer, as ``config.json`` describes it: an MLP or a mixture of
experts.
"""

from __future__ import annotations

from twostroke.model_spec.config_fields import ConfigFields
from twostroke.model_spec.model_sheet import Experts, Linear, Part, whole

FeedForward = tuple[list[Linear], Experts | None]


def feed_forward(
    fields: ConfigFields, model_type: str, hidden: int, index: int, kind: str | None
) -> FeedForward:
    """The products of layer ``index`` behind attention, and its experts; ``kind`` as in
    ``layer_types``.
    """
    if model_type == "nemotron_h":
        return _nemotron(fields, hidden, sparse=kind == "moe")
    if model_type == "granitemoehybrid":
        return _granite(fields, hidden)
    count = _count(fields, 16 if model_type == "jamba" else 0)
    if not count or not _is_sparse(fields, model_type, index, count):
        name = "intermediate_size_mlp" if model_type == "llama4_text" else "intermediate_size"
        return list(_mlp("mlp", hidden, fields.integer(name), fields.flag("mlp_bias"))), None
    size = fields.optional("moe_intermediate_size") or fields.integer("intermediate_size")
    bias = model_type == "gpt_oss"
    linears = [Linear("router", whole(count), hidden, bias=bias, quantised=False)]
    shared = fields.integer("n_shared_experts", 0, least=0) * size
    shared = shared or fields.integer("shared_expert_intermediate_size", 0, least=0)
    shared = size if model_type == "llama4_text" else shared
    if shared and model_type != "qwen3_moe":
        linears += _mlp("shared_expert", hidden, shared, False)
        if model_type.startswith("qwen"):
            linears.append(Linear("shared_expert_gate", whole(1), hidden, quantised=False))
    default = {"mixtral": 2, "jamba": 2, "llama4_text": 1}.get(model_type, 4)
    chosen = fields.integer("num_experts_per_tok", min(default, count), most=count)
    return linears, Experts(count, chosen, _mlp("expert", hidden, size, bias))


def _count(fields: ConfigFields, default: int) -> int:
    """How many experts a layer has, under whichever name; 0 is as good as none."""
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    found = [fields.integer(name, least=0) for name in names if fields.raw.get(name) is not None]
    return next(filter(None, found), 0) if found else default


def _is_sparse(fields: ConfigFields, model_type: str, index: int, count: int) -> bool:
    if model_type == "jamba":
        return count > 1 and fields.is_turn(index, "expert_layer", period=2, offset=1)
    if model_type == "llama4_text":
        chosen = fields.items("moe_layers")
        return (
            index in chosen
            if chosen
            else (index + 1) % fields.integer("interleave_moe_layer_step", 1) == 0
        )
    if model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe"):
        every = fields.integer("moe_layer_freq", 1)
        return index >= fields.integer("first_k_dense_replace", 0, least=0) and index % every == 0
    if index in fields.items("mlp_only_layers"):
        return False
    return (index + 1) % fields.integer("decoder_sparse_step", 1) == 0


def _granite(fields: ConfigFields, hidden: int) -> FeedForward:
    """Every token goes through the shared MLP; experts, if there are any, come on top."""
    linears = list(
        _mlp("shared_expert", hidden, fields.integer("shared_intermediate_size", 1024), False)
    )
    count = fields.integer("num_local_experts", 8, least=0)
    if not count:
        return linears, None
    linears.append(Linear("router", whole(count), hidden, quantised=False))
    chosen = fields.integer("num_experts_per_tok", min(2, count), most=count)
    return linears, Experts(
        count, chosen, _mlp("expert", hidden, fields.integer("intermediate_size"), False)
    )


def _nemotron(fields: ConfigFields, hidden: int, *, sparse: bool) -> FeedForward:
    """Squared ReLU, so nothing gates; experts may work on a narrower copy of the hidden state."""
    bias = fields.flag("mlp_bias")
    if not sparse:
        return list(
            _plain_mlp("mlp", hidden, fields.integer("intermediate_size", 21504), bias)
        ), None
    count, size = (
        fields.integer("n_routed_experts", 8),
        fields.integer("moe_intermediate_size", 7688),
    )
    shared = fields.integer("moe_shared_expert_intermediate_size", 7688)
    linears = [
        Linear("router", whole(count), hidden, quantised=False),
        *_plain_mlp("shared_expert", hidden, shared, bias),
    ]
    narrow = fields.optional("moe_latent_size")
    if narrow:
        linears.append(Linear("latent_down", whole(narrow), hidden, bias=bias))
        linears.append(Linear("latent_up", whole(hidden), narrow, bias=bias))
    chosen = fields.integer("num_experts_per_tok", min(2, count), most=count)
    return linears, Experts(count, chosen, _plain_mlp("expert", narrow or hidden, size, False))


def _mlp(name: str, hidden: int, size: int, bias: bool) -> tuple[Linear, Linear]:
    gate_up = (Part(size, size), Part(size, size))
    return (
        Linear(f"{name}_gate_up", gate_up, hidden, bias=bias),
        Linear(f"{name}_down", whole(hidden), size, size, bias=bias),
    )


def _plain_mlp(name: str, hidden: int, size: int, bias: bool) -> tuple[Linear, Linear]:
    return (
        Linear(f"{name}_up", (Part(size, size),), hidden, bias=bias),
        Linear(f"{name}_down", whole(hidden), size, size, bias=bias),
    )
