"""Layers with a state instead of keys and values, as ``config.json`` describes them.

Linear attention and Mamba. Shapes are those of the models in transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.families import FAMILIES
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.layer_specs import LinearSpec, Part, RecurrentSpec, whole
from twostroke.model_spec.recurrent_forms import ConvolutionForm, DeltaForm, Mamba2Form


@dataclass(frozen=True, slots=True)
class Mamba2Names:
    """Under which names a family writes the sizes of its Mamba-2 layers, with its defaults.

    Attributes:
        inner: Width of the layer, if it is stated; by default ``expand`` times the hidden size, or
            heads times their size where there is no ``expand``.
        output_bias: Field for the output's bias; empty: that of ``bias``.
        norm: Flag of the norm before the output; always there where it is empty.
        state_width: Bytes of one element of the state, unless the file says.
        grouped_norm: That norm divides each group by itself.
        norm_first: Flag, on by default, of that norm's place before the gate.
        least_step: Field of the lower bound of a token's step, which has no upper one;
            ``time_step_limit`` has both where empty.
        activation: Field of the activation after the convolution.
    """

    heads: tuple[str, int] = ("mamba_n_heads", 128)
    head_dim: str = "mamba_d_head"
    groups: tuple[str, int] = ("mamba_n_groups", 1)
    state: tuple[str, int] = ("mamba_d_state", 256)
    kernel: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    inner: tuple[str, int] | None = None
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    output_bias: str = ""
    norm: str = ""
    state_width: int = 2
    grouped_norm: bool = False
    norm_first: str = ""
    least_step: str = ""
    activation: str = "hidden_act"


MAMBA2 = {
    "bamba": Mamba2Names(),
    "granitemoehybrid": Mamba2Names(),
    "falcon_h1": Mamba2Names(
        inner=("mamba_d_ssm", 1024),
        output_bias="projectors_bias",
        norm="mamba_rms_norm",
        norm_first="mamba_norm_before_gate",
        grouped_norm=True,
    ),
    "nemotron_h": Mamba2Names(
        heads=("mamba_num_heads", 128),
        head_dim="mamba_head_dim",
        groups=("n_groups", 8),
        state=("ssm_state_size", 128),
        kernel="conv_kernel",
        expand="",
        conv_bias="use_conv_bias",
        bias="use_bias",
        state_width=4,
        grouped_norm=True,
        least_step="time_step_min",
        activation="mamba_hidden_act",
    ),
    "mamba2": Mamba2Names(
        heads=("num_heads", 128),
        head_dim="head_dim",
        groups=("n_groups", 8),
        state=("state_size", 128),
        kernel="conv_kernel",
        expand="expand",
        conv_bias="use_conv_bias",
        bias="use_bias",
    ),
}


def read_recurrent(fields: ConfigFields, model_type: str, hidden: int) -> RecurrentSpec:
    """The part of a layer that keeps a state. Raises ModelLoadError."""
    kind = FAMILIES[model_type].recurrent
    if kind == "mamba":
        return _mamba(fields, hidden, hybrid=model_type == "jamba")
    if kind == "mamba2":
        return _mamba2(fields, hidden, MAMBA2[model_type])
    if kind == "convolution":
        return _convolution(fields, hidden)
    if kind == "lightning":
        return _lightning(fields, hidden)
    return _gated_delta(fields, hidden)


def _convolution(fields: ConfigFields, hidden: int) -> RecurrentSpec:
    """LFM2 (https://www.liquid.ai/blog/liquid-foundation-models-v2-our-second-series)."""
    kernel, bias = fields.integer("conv_L_cache", 3, minimum=2), fields.flag("conv_bias")
    parts = (Part(hidden, hidden),) * 3
    linears = (
        LinearSpec("state_input", parts, hidden, bias=bias),
        LinearSpec("state_output", whole(hidden), hidden, hidden, bias=bias),
    )
    conv = (Part(hidden * (kernel - 1), hidden),)
    flops, other = (2 * kernel + 2) * hidden, hidden * (kernel + bias)
    form = ConvolutionForm(kernel, bias)
    return RecurrentSpec(hidden, 0, conv, flops, 2, linears, other, form)


def _lightning(fields: ConfigFields, hidden: int) -> RecurrentSpec:
    """Lightning attention (arXiv:2401.04658) as in MiniMax-01 (arXiv:2501.08313) and M1."""
    heads = fields.integer("num_attention_heads")
    size = fields.integer("head_dim", hidden // heads)
    inner = heads * size
    linears = (
        LinearSpec("state_input", (Part(3 * inner, heads),), hidden),
        LinearSpec("state_gates", (Part(inner, heads),), hidden),
        LinearSpec("state_output", whole(hidden), inner, heads),
    )
    state = inner * size
    # Decay, write and read the state: three products of its size, two FLOPs each.
    return RecurrentSpec(heads, state, (), 6 * state, 4, linears, inner)


def _gated_delta(fields: ConfigFields, hidden: int) -> RecurrentSpec:
    """Gated delta rule (arXiv:2412.06464) as in Qwen3-Next."""
    key_heads = fields.integer("linear_num_key_heads", 16)
    value_heads = fields.integer("linear_num_value_heads", 32)
    key_dim, value_dim = (
        fields.integer("linear_key_head_dim", 128),
        fields.integer("linear_value_head_dim", 128),
    )
    keys, values = key_heads * key_dim, value_heads * value_dim
    kernel = fields.integer("linear_conv_kernel_dim", 4)
    channels = 2 * keys + values
    linears = [
        LinearSpec("state_input", (Part(2 * keys + 2 * values, key_heads),), hidden),
        LinearSpec("state_gates", (Part(2 * value_heads, value_heads),), hidden, quantised=False),
        LinearSpec("state_output", whole(hidden), values, value_heads),
    ]
    state = value_heads * key_dim * value_dim
    # Decay, read, correct, write and query the state: four products of its size, two FLOPs each.
    flops = 8 * state + 2 * kernel * channels
    other = channels * kernel + 2 * value_heads + value_dim
    conv = (Part(channels * (kernel - 1), key_heads),)
    width = _width(fields, "mamba_ssm_dtype", 4)
    if value_heads % key_heads:
        raise ModelLoadError(
            f"config.json: linear_num_value_heads ({value_heads}) is no multiple of"
            f" linear_num_key_heads ({key_heads})",
            hint=CHECK,
        )
    form = DeltaForm(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        kernel=kernel,
    )
    return RecurrentSpec(key_heads, state, conv, flops, width, tuple(linears), other, form)


def _mamba(fields: ConfigFields, hidden: int, *, hybrid: bool) -> RecurrentSpec:
    """Mamba (arXiv:2312.00752).

    ``hybrid``: as in Jamba (arXiv:2403.19887), with norms of step, input and output.
    """
    names = (
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_expand",
        "mamba_dt_rank",
        "mamba_conv_bias",
        "mamba_proj_bias",
    )
    if not hybrid:
        names = (
            "state_size",
            "conv_kernel",
            "expand",
            "time_step_rank",
            "use_conv_bias",
            "use_bias",
        )
    size, kernel = fields.integer(names[0], 16), fields.integer(names[1], 4)
    stated = None if hybrid else fields.optional("intermediate_size")
    inner = stated or fields.integer(names[2], 2) * hidden
    rank = fields.automatic(names[3], -(-hidden // 16))
    conv_bias, bias = fields.flag(names[4], True), fields.flag(names[5])
    linears = [
        LinearSpec("state_input", (Part(inner, inner), Part(inner, inner)), hidden, bias=bias),
        LinearSpec("state_selection", whole(rank + 2 * size), inner, inner, quantised=False),
        LinearSpec("state_steps", (Part(inner, inner),), rank, bias=True, quantised=False),
        LinearSpec("state_output", whole(hidden), inner, inner, bias=bias),
    ]
    state = inner * size
    # Discretise, decay, write and read the state, every element with a decay of its own: two FLOPs
    # each.
    flops = 8 * state + 2 * kernel * inner
    other = inner * (kernel + conv_bias) + state + inner + (rank + 2 * size) * hybrid
    conv = (Part(inner * (kernel - 1), inner),)
    width = _width(fields, "mamba_ssm_cache_dtype", 2)
    return RecurrentSpec(inner, state, conv, flops, width, tuple(linears), other)


def _mamba2(fields: ConfigFields, hidden: int, names: Mamba2Names) -> RecurrentSpec:
    """Mamba-2 (arXiv:2405.21060): heads share a decay, groups of heads what is written and read."""
    heads, size = fields.integer(*names.heads), fields.integer(*names.state)
    groups = fields.integer(*names.groups)
    kernel = fields.integer(names.kernel, 4)
    inner, head_dim = _inner(fields, hidden, heads, names)
    if inner != heads * head_dim or heads % groups:
        sizes = f"{heads} heads of {head_dim} in {groups} groups do not make up {inner}"
        raise ModelLoadError(f"config.json: {names.heads[0]}: {sizes}", hint=CHECK)
    bias = fields.flag(names.bias)
    shared = Part(2 * groups * size, groups)
    gate, values = Part(inner, heads), Part(inner, heads)
    linears = [
        LinearSpec("state_input", (gate, values, shared, Part(heads, heads)), hidden, bias=bias),
        LinearSpec(
            "state_output",
            whole(hidden),
            inner,
            heads,
            bias=fields.flag(names.output_bias or names.bias),
        ),
    ]
    channels = inner + shared.outputs
    state = inner * size
    # Decay, write and read the state: three products of its size, two FLOPs each.
    flops = 6 * state + 2 * kernel * channels
    normed = fields.flag(names.norm) if names.norm else True
    other = channels * (kernel + fields.flag(names.conv_bias, True)) + 3 * heads + inner * normed
    conv = (Part(inner * (kernel - 1), heads), Part(shared.outputs * (kernel - 1), groups))
    width = _width(fields, "mamba_ssm_cache_dtype", names.state_width)
    least_step, most_step = _step_limits(fields, names)
    form = Mamba2Form(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=size,
        kernel=kernel,
        conv_bias=fields.flag(names.conv_bias, True),
        bias=bias,
        output_bias=linears[1].bias,
        norm_groups=(groups if names.grouped_norm else 1) if normed else 0,
        norm_first=bool(names.norm_first) and fields.flag(names.norm_first, True),
        least_step=least_step,
        most_step=most_step,
        activation=str(fields.raw.get(names.activation, "silu")),
    )
    return RecurrentSpec(heads, state, conv, flops, width, tuple(linears), other, form)


def _step_limits(fields: ConfigFields, names: Mamba2Names) -> tuple[float, float]:
    if names.least_step:
        return fields.number(names.least_step, 0.001), math.inf
    limits = fields.items("time_step_limit") or [0.0, math.inf]
    are_numbers = all(isinstance(limit, int | float) for limit in limits)
    if len(limits) != 2 or not are_numbers or not 0 <= limits[0] <= limits[1]:
        raise ModelLoadError(
            f"config.json: time_step_limit must be two numbers in order, got {short(limits)}",
            hint=CHECK,
        )
    return float(limits[0]), float(limits[1])


def _inner(fields: ConfigFields, hidden: int, heads: int, names: Mamba2Names) -> tuple[int, int]:
    """(width of the layer, size of a head)."""
    if not names.expand:
        head_dim = fields.integer(names.head_dim, 64)
        return heads * head_dim, head_dim
    inner = fields.integer(names.expand, 2) * hidden
    if names.inner:
        # null means what expand says, and nothing at all the default.
        stated = fields.optional(names.inner[0]) if names.inner[0] in fields.raw else names.inner[1]
        inner = stated or inner
    default = 64 if names.head_dim == "head_dim" else max(inner // heads, 1)
    return inner, fields.automatic(names.head_dim, default)


def _width(fields: ConfigFields, name: str, default: int) -> int:
    """Bytes of one element of the state, as stated or by default.

    Defaults are those of vLLM (``mamba_utils``, ``models/config``).
    """
    value = fields.raw.get(name)
    widths = {None: default, "auto": default, "float32": 4, "bfloat16": 2, "float16": 2}
    if not isinstance(value, str | None) or value not in widths:
        raise ModelLoadError(
            f"config.json: {name} must be float32, bfloat16 or float16, got {short(value)}",
            hint=CHECK,
        )
    return widths[value]
