"""A layer of Mamba-2 (arXiv:2405.21060): a short convolution, a recurrent state, a gated norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.layers.compiled.branches import CompiledBranch, compile_recurrent
from twostroke.layers.compiled.recurrent import CompiledMamba2
from twostroke.layers.gated_delta import short_convolution
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import LayerState, StateShape, run_segments
from twostroke.layers.selective_state import selective_state
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.recurrent_forms import Mamba2Form
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Kind:
    """Names in checkpoints, see ``BranchKind``."""

    norm: str = "input_layernorm"
    prefix: str = "mamba."

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.recurrent is not None and isinstance(layer.recurrent.form, Mamba2Form)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        form, own = _form_of(layer), self.prefix
        inputs = [(f"{own}in_proj", form.inner + form.channels + form.heads)]
        convolution = (form.channels, 1, form.kernel)
        parameters = [
            vector_parameter("mamba_norm", self.norm, hidden),
            *linear_parameters("mamba_input", inputs, hidden, form.bias),
            Parameter("mamba_conv", ((f"{own}conv1d.weight", convolution),)),
        ]
        vectors = [("log_rates", "A_log"), ("skip", "D"), ("bias", "dt_bias")]
        for name, stored in vectors:
            parameters.append(Parameter(f"mamba_{name}", ((own + stored, (form.heads,)),)))
        if form.conv_bias:
            conv_bias = (f"{own}conv1d.bias", (form.channels,))
            parameters.append(Parameter("mamba_conv_bias", (conv_bias,)))
        if form.norm_groups:
            parameters.append(vector_parameter("mamba_inner_norm", f"{own}norm", form.inner))
        output = [(f"{own}out_proj", hidden)]
        return parameters + linear_parameters("mamba_out", output, form.inner, form.output_bias)

    def build(self, layer: LayerSpec, parts: BranchParts) -> Mamba2Branch:
        return Mamba2Branch(_form_of(layer), parts)


class Mamba2Branch:
    """``x + out(norm(state(conv(input(x))) * silu(gate)))``, see ``Branch``."""

    mixes_tokens = True
    asks_host = True  # where states lie

    def __init__(self, form: Mamba2Form, parts: BranchParts) -> None:
        self._form, self._index, self._profiler = form, parts.index, parts.profiler
        self._norm, self._input = parts.norm("mamba_norm"), parts.linear("mamba_input")
        self._conv = parts.tensor("mamba_conv").squeeze(1)  # [channels, kernel]
        self._conv_bias = parts.tensor("mamba_conv_bias") if form.conv_bias else None
        self._rates = parts.tensor("mamba_log_rates").float().exp()
        self._skip = parts.tensor("mamba_skip").float()[:, None]
        self._bias = parts.tensor("mamba_bias").float()
        norm = parts.tensor("mamba_inner_norm") if form.norm_groups else None
        self._inner_norm = None
        if norm is not None:
            self._inner_norm = RMSNorm(norm.view(form.norm_groups, -1), parts.norm_eps)
        self._add = parts.addition("mamba_out", "")
        self._compiled: CompiledMamba2 | None = None
        if parts.kernels is not None and CompiledMamba2.can_run(form):
            self._compiled = CompiledMamba2(
                form,
                (self._conv, self._conv_bias),
                self._rates,
                self._skip,
                self._bias,
                norm,
                parts.norm_eps,
                parts.kernels,
            )
        heads = (form.heads, form.state, form.head_dim)
        self.state: tuple[StateShape, ...] = (
            StateShape((form.kernel - 1, form.channels), self._conv.dtype),
            StateShape(heads, torch.float32, is_matrix=True),
        )

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        with self._profiler.measure(GEMM):
            inputs = self._input(normed)
        with self._profiler.measure(ATTENTION):
            if self._compiled is None:
                out = self._mix(inputs, step)
            else:
                out = self._compiled(inputs, step.states, self._index)
        if rows is not None:
            out, onto = out[rows], onto[rows]
        with self._profiler.measure(GEMM):
            return self._add(out, onto)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._input, self._add.linear

    def compiled(self) -> CompiledBranch | None:
        norm, output = self._norm.kernel_call, self._add.compiled()
        return compile_recurrent(norm, self._input.kernel_call, output, self._compiled)

    def _mix(self, inputs: Tensor, step: PassInputs) -> Tensor:
        """What ``CompiledMamba2`` computes, in PyTorch's operators."""
        form = self._form
        gate, mixed = inputs[:, : form.inner], inputs[:, form.inner : -form.heads]
        steps = F.softplus(inputs[:, -form.heads :].float() + self._bias)
        steps = steps.clamp(form.least_step, form.most_step)
        out = steps.new_empty(len(inputs), form.inner)
        run_segments(
            step.states,
            self._index,
            out,
            lambda own, state: self._run(mixed[own], steps[own], state),
        )
        gate = F.silu(gate.float())
        gated = self._normed(out) * gate if form.norm_first else self._normed(out * gate)
        return gated.to(inputs.dtype)

    def _normed(self, out: Tensor) -> Tensor:
        if self._inner_norm is None:
            return out
        parts = self._form.norm_groups, self._form.inner // self._form.norm_groups
        return self._inner_norm(out.view(len(out), *parts)).flatten(1)

    def _run(self, mixed: Tensor, steps: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Tokens of one request; ``mixed`` ``[tokens, channels]``."""
        form, (before, matrix) = self._form, state
        convolved, last = short_convolution(mixed, before, self._conv, self._conv_bias)
        active = F.silu(convolved).to(mixed.dtype).float()
        x = active[:, : form.inner].view(-1, form.heads, form.head_dim)
        write, read = active[:, form.inner :].view(-1, 2, form.groups, form.state).unbind(1)
        group = form.heads // form.groups
        write, read = write.repeat_interleave(group, 1), read.repeat_interleave(group, 1)
        out, matrix = selective_state(x, steps, self._rates, write, read, matrix)
        return (out + self._skip * x).flatten(1), (last, matrix)


def _form_of(layer: LayerSpec) -> Mamba2Form:
    assert layer.recurrent is not None and isinstance(layer.recurrent.form, Mamba2Form)
    return layer.recurrent.form
