"""What a layer of Gemma 4 does at last: add what its own embedding says of a token, and scale.

The embeddings of all layers lie in one table, see ``models.layer_inputs``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.pass_calls import LayerInputCall
from twostroke.layers.activation import KERNEL_ACTIVATIONS, activation_of
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import LayerInputSpec, LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.observability.profile import GEMM


@dataclass(frozen=True, slots=True)
class LayerInputKind:
    """See ``BranchKind``. Every layer has a scale, some models' embeddings for layers."""

    def is_in(self, layer: LayerSpec) -> bool:
        return True

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        scalar = Parameter("layer_scalar", (("layer_scalar", (1,)),))
        if layer.inputs is None:
            return [scalar]
        size = layer.inputs.size
        gate, output = [("per_layer_input_gate", size)], [("per_layer_projection", hidden)]
        return [
            *linear_parameters("input_gate", gate, hidden, False),
            *linear_parameters("input_output", output, size, False),
            vector_parameter("input_added_norm", "post_per_layer_input_norm", hidden),
            scalar,
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> LayerInputBranch:
        return LayerInputBranch(layer.inputs, parts)


class LayerInputBranch:
    """``scale * (x + norm(output(activation(gate(x)) * input)))``, see ``Branch``."""

    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: LayerInputSpec | None, parts: BranchParts) -> None:
        self._index, self._profiler, self._kernels = parts.index, parts.profiler, parts.kernels
        self._scalar = parts.tensor("layer_scalar")
        self._gate: Linear | None = None
        if spec is not None:
            self._gate = parts.linear("input_gate")
            self._activation = activation_of(spec.activation, gated=True)
            self._add = parts.addition("input_output", "input_added_norm", is_divided=False)

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        assert rows is None and onto is None  # it neither mixes tokens nor runs beside others
        x = hidden.sum()
        if self._gate is None:
            return Hidden(x * self._scalar)
        assert step.layer_inputs is not None
        own = step.layer_inputs[:, self._index]  # [tokens, size]
        if len(own) != len(x):  # only some tokens went on
            own = own[step.rows]
        with self._profiler.measure(GEMM):
            gate = self._gate(x)
        inner = self._activation(torch.cat((gate, own), -1), self._kernels)
        with self._profiler.measure(GEMM):
            return Hidden(self._add(inner, x).sum() * self._scalar)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return () if self._gate is None else (self._gate, self._add.linear)

    def compiled(self) -> CompiledBranch | None:
        call = LayerInputCall(scale=float(self._scalar))
        if self._gate is not None:
            gate, output = self._gate.kernel_call, self._add.compiled()
            activation = KERNEL_ACTIVATIONS.get(self._activation)
            if gate is None or gate.num_parts or output is None or activation is None:
                return None
            call.gate, call.output, call.activation = gate, output, activation
            call.first = self._index * gate.outputs
        return CompiledBranch(call)
