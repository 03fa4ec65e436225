"""A gated convolution over the latest few tokens, as LFM2 has it in place of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.layers.compiled.branches import CompiledBranch, compile_recurrent
from twostroke.layers.compiled.recurrent import CompiledConvolution
from twostroke.layers.gated_delta import short_convolution
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import (
    LayerState,
    LayerStates,
    StateShape,
    run_segments,
)
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.recurrent_forms import ConvolutionForm
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import ATTENTION, GEMM


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolutionKind:
    """Names in checkpoints, see ``BranchKind``."""

    norm: str = "operator_norm"
    prefix: str = "conv."

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.recurrent is not None and isinstance(layer.recurrent.form, ConvolutionForm)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        form, own = _form_of(layer), self.prefix
        parameters = [
            vector_parameter("conv_norm", self.norm, hidden),
            *linear_parameters("conv_input", [(f"{own}in_proj", 3 * hidden)], hidden, form.bias),
            Parameter("conv_taps", ((f"{own}conv.weight", (hidden, 1, form.kernel)),)),
        ]
        if form.bias:
            parameters.append(Parameter("conv_bias", ((f"{own}conv.bias", (hidden,)),)))
        return parameters + linear_parameters(
            "conv_out", [(f"{own}out_proj", hidden)], hidden, form.bias
        )

    def build(self, layer: LayerSpec, parts: BranchParts) -> ShortConvolutionBranch:
        return ShortConvolutionBranch(_form_of(layer), parts)


class ShortConvolutionBranch:
    """``x + out(second * conv(first * third))`` of three parts of ``input(norm(x))``."""

    mixes_tokens = True
    asks_host = True  # where states lie

    def __init__(self, form: ConvolutionForm, parts: BranchParts) -> None:
        self._index, self._profiler = parts.index, parts.profiler
        self._norm, self._input = parts.norm("conv_norm"), parts.linear("conv_input")
        self._taps = parts.tensor("conv_taps").squeeze(1)  # [hidden, kernel]
        self._bias = parts.tensor("conv_bias") if form.bias else None
        self._add = parts.addition("conv_out", "")
        self._compiled: CompiledConvolution | None = None
        if parts.kernels is not None and CompiledConvolution.can_run(form.kernel):
            self._compiled = CompiledConvolution(self._taps, self._bias, parts.kernels)
        shape = (form.kernel - 1, len(self._taps))
        self.state: tuple[StateShape, ...] = (StateShape(shape, self._taps.dtype),)

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x, normed = hidden.normed(self._norm)
        onto = x if onto is None else onto
        with self._profiler.measure(GEMM):
            inputs = self._input(normed)
        with self._profiler.measure(ATTENTION):
            if self._compiled is None:
                gated = self._mix(inputs, step.states)
            else:
                gated = self._compiled(inputs, step.states, self._index)
        if rows is not None:
            gated, onto = gated[rows], onto[rows]
        with self._profiler.measure(GEMM):
            return self._add(gated, onto)

    def _mix(self, inputs: Tensor, states: LayerStates) -> Tensor:
        """What ``CompiledConvolution`` computes, in PyTorch's operators."""
        first, second, third = inputs.chunk(3, -1)
        mixed = first * third
        out = torch.empty_like(mixed)
        run_segments(states, self._index, out, lambda own, state: self._run(mixed[own], *state))
        return second * out

    def _run(self, mixed: Tensor, before: Tensor) -> tuple[Tensor, LayerState]:
        """Tokens of one request, after the inputs ``before`` them."""
        convolved, last = short_convolution(mixed, before, self._taps, self._bias)
        return convolved.to(mixed.dtype), (last,)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._input, self._add.linear

    def compiled(self) -> CompiledBranch | None:
        norm, output = self._norm.kernel_call, self._add.compiled()
        return compile_recurrent(norm, self._input.kernel_call, output, self._compiled)


def _form_of(layer: LayerSpec) -> ConvolutionForm:
    assert layer.recurrent is not None and isinstance(layer.recurrent.form, ConvolutionForm)
    return layer.recurrent.form
