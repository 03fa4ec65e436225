"""What follows attention in a layer, as ``config.json`` describes it: an MLP or experts."""

from __future__ import annotations

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.families import FAMILIES
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.layer_specs import ExpertsSpec, Linears, LinearSpec, MlpSpec, Part, whole
from twostroke.model_spec.routing import RoutingSpec

FeedForward = tuple[MlpSpec | None, ExpertsSpec | None]

# Of one layer: what a file makes us list stays within what can exist.
MAX_EXPERTS = 10_000


def read_feed_forward(
    fields: ConfigFields, model_type: str, hidden: int, index: int, kind: str | None
) -> FeedForward:
    """What follows attention in layer ``index``; ``kind`` as in ``layer_types``."""
    if model_type == "nemotron_h":
        return _nemotron(fields, hidden, sparse=kind == "moe")
    activation = _activation(fields, model_type)
    if model_type == "gpt_oss":
        activation = "clamped_swiglu"  # whatever its files say
    if model_type == "gemma4_text":
        return _gemma4(fields, hidden, activation)
    if model_type == "granitemoehybrid":
        return _granite(fields, hidden, activation)
    if model_type == "lfm2":
        size = _lfm2_size(fields)
        return MlpSpec(size, _gated("mlp", hidden, size, False), activation), None
    count = _count(fields, 16 if model_type in ("jamba", "llama4_text") else 0)
    if not count or not _is_sparse(fields, model_type, index, count):
        name = "intermediate_size_mlp" if model_type == "llama4_text" else "intermediate_size"
        size, bias = fields.integer(name), fields.flag("mlp_bias")
        linears = _gated("mlp", hidden, size, bias)
        return MlpSpec(size, linears, activation, bias=bias), None
    size = fields.optional("moe_intermediate_size") or fields.integer("intermediate_size")
    bias = model_type == "gpt_oss"
    shared: Linears = (LinearSpec("router", whole(count), hidden, bias=bias, quantised=False),)
    shared_size = fields.integer("n_shared_experts", 0, minimum=0) * size
    shared_size = shared_size or fields.integer("shared_expert_intermediate_size", 0, minimum=0)
    shared_size = size if model_type == "llama4_text" else shared_size
    shared_size = 0 if model_type == "qwen3_moe" else shared_size
    is_gate = bool(shared_size) and model_type.startswith("qwen")
    if shared_size:
        shared += _gated("shared_expert", hidden, shared_size, False)
        if is_gate:
            shared += (LinearSpec("shared_expert_gate", whole(1), hidden, quantised=False),)
    default = {"mixtral": 2, "jamba": 2, "llama4_text": 1, "minimax": 2}.get(model_type, 4)
    chosen = fields.integer("num_experts_per_tok", min(default, count), maximum=count)
    expert = _gated("expert", hidden, size, bias)
    return None, ExpertsSpec(
        count,
        chosen,
        expert,
        shared,
        activation,
        size=size,
        shared_size=shared_size,
        bias=bias,
        shared_gate=is_gate,
        routing=_routing(fields, model_type, count),
    )


def _routing(fields: ConfigFields, model_type: str, count: int) -> RoutingSpec:
    """How tokens find their experts, as the classes in transformers do it."""
    if model_type.startswith("qwen"):
        always = model_type not in ("qwen2_moe", "qwen3_moe")
        return RoutingSpec(normalized=fields.flag("norm_topk_prob", always))
    if model_type == "llama4_text":
        return RoutingSpec("sigmoid", normalized=False, scales_inputs=True)
    if model_type in ("glm4_moe", "minimax_m2"):
        return _corrected_routing(fields, count, groups=1, chosen_groups=1, scale=1.0)
    if model_type == "deepseek_v3":
        return _corrected_routing(fields, count, groups=min(8, count), chosen_groups=4, scale=2.5)
    if model_type == "deepseek_v2":
        grouped = fields.raw.get("topk_method", "greedy") == "group_limited_greedy"
        groups = _groups(fields, count) if grouped else 1
        return RoutingSpec(
            normalized=False,
            scale=fields.number("routed_scaling_factor", 1.0),
            groups=groups,
            chosen_groups=fields.integer("topk_group", maximum=groups) if grouped else 1,
        )
    return RoutingSpec()


def _corrected_routing(
    fields: ConfigFields, count: int, *, groups: int, chosen_groups: int, scale: float
) -> RoutingSpec:
    """DeepSeek-V3's (arXiv:2412.19437, section 2.1.2), with a family's defaults."""
    groups = _groups(fields, count, groups)
    return RoutingSpec(
        "sigmoid",
        fields.flag("norm_topk_prob", True),
        fields.number("routed_scaling_factor", scale),
        corrected=True,
        groups=groups,
        chosen_groups=fields.integer("topk_group", min(chosen_groups, groups), maximum=groups),
        best_two=True,
    )


def _groups(fields: ConfigFields, count: int, default: int | None = None) -> int:
    """Groups of experts of one size. Raises ModelLoadError."""
    groups = fields.integer("n_group", default, maximum=count)
    if count % groups:
        raise ModelLoadError(
            f"config.json: n_group ({groups}) does not divide the {count} experts", hint=CHECK
        )
    return groups


def _lfm2_size(fields: ConfigFields) -> int:
    """Two thirds of the stated size, rounded up to a multiple, as in transformers."""
    size = fields.optional("block_ff_dim") or fields.integer("intermediate_size", 12288)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(fields.number("block_ffn_dim_multiplier", 1.0) * (2 * size // 3))
    multiple = fields.integer("block_multiple_of", 256)
    return -(-size // multiple) * multiple


def _activation(fields: ConfigFields, model_type: str) -> str:
    name, default = FAMILIES[model_type].activation
    value = fields.raw.get(name, default)
    return value if isinstance(value, str) else short(value)


def _count(fields: ConfigFields, default: int) -> int:
    """How many experts a layer has, under whichever name; 0 is as good as none."""
    names = ("num_local_experts", "n_routed_experts", "num_experts")
    counts = [
        fields.integer(name, minimum=0, maximum=MAX_EXPERTS)
        for name in names
        if fields.raw.get(name) is not None
    ]
    return next(filter(None, counts), 0) if counts else default


def _is_sparse(fields: ConfigFields, model_type: str, index: int, count: int) -> bool:
    if model_type == "jamba":
        return count > 1 and fields.is_turn(index, "expert_layer", period=2, offset=1)
    if model_type == "llama4_text":
        chosen = fields.items("moe_layers")
        every = fields.integer("interleave_moe_layer_step", 1)
        is_stated = fields.raw.get("moe_layers") is not None
        return index in chosen if is_stated else (index + 1) % every == 0
    if index < len(kinds := fields.items("mlp_layer_types")):
        return bool(kinds[index] == "sparse")
    if model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe"):
        every = fields.integer("moe_layer_freq", 1)
        return index >= fields.integer("first_k_dense_replace", 0, minimum=0) and index % every == 0
    if index in fields.items("mlp_only_layers"):
        return False
    return (index + 1) % fields.integer("decoder_sparse_step", 1) == 0


def _granite(fields: ConfigFields, hidden: int, activation: str) -> FeedForward:
    """Every token goes through the shared MLP; experts, if there are any, come on top."""
    size = fields.integer("shared_intermediate_size", 1024)
    shared, shared_size = _gated("shared_expert", hidden, size, False), size
    count = fields.integer("num_local_experts", 8, minimum=0, maximum=MAX_EXPERTS)
    if not count:
        return MlpSpec(size, shared, activation), None
    shared += (LinearSpec("router", whole(count), hidden, quantised=False),)
    chosen = fields.integer("num_experts_per_tok", min(2, count), maximum=count)
    size = fields.integer("intermediate_size")
    expert = _gated("expert", hidden, size, False)
    return None, ExpertsSpec(
        count, chosen, expert, shared, activation, size=size, shared_size=shared_size
    )


def _gemma4(fields: ConfigFields, hidden: int, activation: str) -> FeedForward:
    """An MLP, and experts beside it where the file enables them."""
    size = fields.integer("intermediate_size")
    mlp = MlpSpec(size, _gated("mlp", hidden, size, False), activation)
    if not fields.flag("enable_moe_block"):
        return mlp, None
    count = fields.integer("num_experts", maximum=MAX_EXPERTS)
    size = fields.integer("moe_intermediate_size")
    chosen = fields.integer("top_k_experts", maximum=count)
    router = (LinearSpec("router", whole(count), hidden, quantised=False),)
    expert = _gated("expert", hidden, size, False)
    return mlp, ExpertsSpec(count, chosen, expert, router, activation, size=size)


def _nemotron(fields: ConfigFields, hidden: int, *, sparse: bool) -> FeedForward:
    """Squared ReLU, so nothing gates; experts may work on a narrower copy of the hidden state."""
    bias, activation = fields.flag("mlp_bias"), _activation(fields, "nemotron_h")
    if not sparse:
        size = fields.integer("intermediate_size", 21504)
        return MlpSpec(size, _plain("mlp", hidden, size, bias), activation, False, bias), None
    count, size = (
        fields.integer("n_routed_experts", 8, maximum=MAX_EXPERTS),
        fields.integer("moe_intermediate_size", 7688),
    )
    shared_size = fields.integer("moe_shared_expert_intermediate_size", 7688)
    shared: Linears = (
        LinearSpec("router", whole(count), hidden, quantised=False),
        *_plain("shared_expert", hidden, shared_size, bias),
    )
    narrow = fields.optional("moe_latent_size")
    if narrow:
        shared += (
            LinearSpec("latent_down", whole(narrow), hidden, bias=bias),
            LinearSpec("latent_up", whole(hidden), narrow, bias=bias),
        )
    chosen = fields.integer("num_experts_per_tok", min(2, count), maximum=count)
    expert = _plain("expert", narrow or hidden, size, False)
    return None, ExpertsSpec(
        count,
        chosen,
        expert,
        shared,
        activation,
        False,
        size=size,
        shared_size=shared_size,
        narrow=narrow or 0,
        routing=_corrected_routing(fields, count, groups=1, chosen_groups=1, scale=1.0),
    )


def _gated(name: str, hidden: int, size: int, bias: bool) -> Linears:
    gate_up = (Part(size, size), Part(size, size))
    return (
        LinearSpec(f"{name}_gate_up", gate_up, hidden, bias=bias),
        LinearSpec(f"{name}_down", whole(hidden), size, size, bias=bias),
    )


def _plain(name: str, hidden: int, size: int, bias: bool) -> Linears:
    return (
        LinearSpec(f"{name}_up", (Part(size, size),), hidden, bias=bias),
        LinearSpec(f"{name}_down", whole(hidden), size, size, bias=bias),
    )
