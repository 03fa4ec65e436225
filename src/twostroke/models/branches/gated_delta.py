"""Linear attention by the gated delta rule, as Qwen3-Next, 3.5 and 3.6 have it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.layers.compiled.branches import CompiledBranch, compile_recurrent
from twostroke.layers.compiled.recurrent import CompiledDelta
from twostroke.layers.gated_delta import decays, gated_delta, short_convolution, unit_length
from twostroke.layers.gpu.load import load_gated_delta
from twostroke.layers.linear import Linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import LayerState, StateShape, run_segments
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.recurrent_forms import DeltaForm
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM

if TYPE_CHECKING:
    from twostroke.layers.gpu.gated_delta import GpuDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaKind:
    """Names in checkpoints, see ``BranchKind``.

    Attributes:
        fused: Two products instead of four: query, key, value and gate of one key head after
            another, and both gates of its value heads (Qwen3-Next).
    """

    norm: str = "input_layernorm"
    prefix: str = "linear_attn."
    fused: bool = False

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.recurrent is not None and isinstance(layer.recurrent.form, DeltaForm)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        form, own = _form_of(layer), self.prefix
        mixed, gates = form.channels + form.values, 2 * form.value_heads
        outputs = [(f"{own}in_proj_qkv", form.channels), (f"{own}in_proj_z", form.values)]
        gate_outputs = [
            (f"{own}in_proj_b", form.value_heads),
            (f"{own}in_proj_a", form.value_heads),
        ]
        if self.fused:
            outputs = [(f"{own}in_proj_qkvz", mixed)]
            gate_outputs = [(f"{own}in_proj_ba", gates)]
        convolution = (form.channels, 1, form.kernel)
        return [
            vector_parameter("delta_norm", self.norm, hidden),
            *linear_parameters("delta_input", outputs, hidden, False),
            *linear_parameters("delta_gates", gate_outputs, hidden, False),
            Parameter("delta_conv", ((f"{own}conv1d.weight", convolution),)),
            Parameter("delta_log_rates", ((f"{own}A_log", (form.value_heads,)),)),
            Parameter("delta_bias", ((f"{own}dt_bias", (form.value_heads,)),)),
            vector_parameter("delta_head_norm", f"{own}norm", form.value_dim),
            *linear_parameters("delta_out", [(f"{own}out_proj", hidden)], form.values, False),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> GatedDeltaBranch:
        return GatedDeltaBranch(_form_of(layer), parts, fused=self.fused)


class GatedDeltaBranch:
    """``x + out(norm(delta(conv(input(x)))) * silu(gate))``, see ``Branch``."""

    mixes_tokens = True

    def __init__(self, form: DeltaForm, parts: BranchParts, *, fused: bool) -> None:
        self._form, self._index, self._profiler = form, parts.index, parts.profiler
        self._norm = parts.norm("delta_norm")
        self._input = parts.linear("delta_input", _fused_rows(form) if fused else None)
        gate_rows = _fused_gates(form) if fused else None
        self._gates = parts.linear("delta_gates", gate_rows, is_exact=True)
        self._conv = parts.tensor("delta_conv").squeeze(1)  # [channels, kernel]
        self._log_rates = parts.tensor("delta_log_rates")
        self._bias = parts.tensor("delta_bias")
        norm = parts.tensor("delta_head_norm")
        self._head_norm = RMSNorm(norm, parts.norm_eps)
        self._add = parts.addition("delta_out", "")
        self._compiled: CompiledDelta | None = None
        if parts.kernels is not None and CompiledDelta.can_run(form):
            self._compiled = CompiledDelta(
                form,
                self._conv,
                log_rates=self._log_rates,
                bias=self._bias,
                norm=norm,
                eps=parts.norm_eps,
                library=parts.kernels,
            )
        self._on_gpu: GpuDelta | None = None
        if self._compiled is None:
            decay = self._log_rates, self._bias
            self._on_gpu = load_gated_delta(form, self._conv, *decay, norm, parts.norm_eps)
        heads = (form.value_heads, form.key_dim, form.value_dim)
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
            inputs, gates = self._input(normed), self._gates.wide(normed)
        with self._profiler.measure(ATTENTION):
            run = self._compiled or self._on_gpu
            if run is None:
                out = self._mix(inputs, gates, step)
            else:
                out = run(inputs, gates, step.states, self._index)
        if rows is not None:
            out, onto = out[rows], onto[rows]
        with self._profiler.measure(GEMM):
            return self._add(out, onto)

    @property
    def asks_host(self) -> bool:
        """Whether states are read where the host's tables say."""
        return self._on_gpu is None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._input, self._gates, self._add.linear

    def compiled(self) -> CompiledBranch | None:
        norm, output = self._norm.kernel_call, self._add.compiled()
        if self._gates.kernel_call is None:
            return None
        return compile_recurrent(
            norm, self._input.kernel_call, output, self._compiled, self._gates.kernel_call
        )

    def _mix(self, inputs: Tensor, gates: Tensor, step: PassInputs) -> Tensor:
        """What ``CompiledDelta`` computes, in PyTorch's operators."""
        form = self._form
        mixed, gate = inputs[:, : form.channels], inputs[:, form.channels :]
        rate = gates[:, : form.value_heads].sigmoid()
        decay = decays(gates[:, form.value_heads :], self._log_rates, self._bias)
        out = gates.new_empty(len(mixed), form.value_heads, form.value_dim)

        def run(rows: slice, state: LayerState) -> tuple[Tensor, LayerState]:
            return self._run(mixed[rows], decay[rows], rate[rows], state)

        run_segments(step.states, self._index, out, run)
        normed = self._head_norm(out.to(inputs.dtype)).float()
        gated = normed * F.silu(gate.float().view_as(normed))
        return gated.to(inputs.dtype).flatten(1)

    def _run(
        self, mixed: Tensor, decay: Tensor, rate: Tensor, state: LayerState
    ) -> tuple[Tensor, LayerState]:
        """Tokens of one request; ``mixed`` ``[tokens, channels]``."""
        form, (before, matrix) = self._form, state
        convolved, last = short_convolution(mixed, before, self._conv)
        # Rounded as the hidden states are, as in transformers.
        active = F.silu(convolved).to(mixed.dtype).float()
        query, key = active[:, : form.keys], active[:, form.keys : 2 * form.keys]
        value = active[:, 2 * form.keys :]
        group = form.value_heads // form.key_heads
        query, key = (
            unit_length(part.view(len(mixed), form.key_heads, form.key_dim)).repeat_interleave(
                group, 1
            )
            for part in (query, key)
        )
        value = value.view(len(mixed), form.value_heads, form.value_dim)
        out, matrix = gated_delta(query * form.key_dim**-0.5, key, value, decay, rate, matrix)
        return out, (last, matrix)


def _fused_rows(form: DeltaForm) -> Tensor:
    """Rows of ``in_proj_qkvz`` as queries, keys, values and gates of all heads."""
    group = form.value_heads // form.key_heads
    sizes = (form.key_dim, form.key_dim, group * form.value_dim, group * form.value_dim)
    heads = torch.arange(form.channels + form.values).view(form.key_heads, -1)
    ends = list(accumulate(sizes))
    parts = [heads[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def _fused_gates(form: DeltaForm) -> Tensor:
    """Rows of ``in_proj_ba`` as rates and decays of all value heads."""
    heads = torch.arange(2 * form.value_heads).view(form.key_heads, 2, -1)
    return torch.cat((heads[:, 0].flatten(), heads[:, 1].flatten()))


def _form_of(layer: LayerSpec) -> DeltaForm:
    assert layer.recurrent is not None and isinstance(layer.recurrent.form, DeltaForm)
    return layer.recurrent.form
