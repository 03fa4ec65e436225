"""Experts whose weights lie in one tensor for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.layers.linear import Linear
from twostroke.model_spec.layer_specs import ExpertsSpec
from twostroke.models.branches.base import BranchParts
from twostroke.models.parameters import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStack:
    """How the tensors of all experts lie in a checkpoint.

    Attributes:
        gate_up, down: Their names, relative to ``ExpertsKind.expert``; biases are ``{name}_bias``.
        inputs_first: An expert's matrix is ``[inputs, outputs]``, not the other way round.
        take_turns: Gate and up take turns; otherwise gates come first.
    """

    gate_up: str = "gate_up_proj"
    down: str = "down_proj"
    inputs_first: bool = False
    take_turns: bool = False

    def parameters(self, spec: ExpertsSpec, hidden: int, prefix: str) -> list[Parameter]:
        inner, size = 2 * spec.size, spec.size
        shapes = {"gate_up": (inner, hidden), "down": (hidden, size)}
        parameters = list[Parameter]()
        for name, (outputs, inputs) in shapes.items():
            own = prefix + (self.gate_up if name == "gate_up" else self.down)
            matrix = (inputs, outputs) if self.inputs_first else (outputs, inputs)
            parameters.append(Parameter(f"stack.{name}", ((own, (spec.count, *matrix)),)))
            if spec.bias:
                bias = (f"{own}_bias", (spec.count, outputs))
                parameters.append(Parameter(f"stack.{name}_bias", (bias,)))
        return parameters

    def experts(self, spec: ExpertsSpec, parts: BranchParts) -> list[tuple[Linear, Linear]]:
        """Gates with ups, and downs, of each expert."""
        gate_up, down = parts.tensor("stack.gate_up"), parts.tensor("stack.down")
        biases: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * spec.count
        if spec.bias:
            both = parts.tensor("stack.gate_up_bias"), parts.tensor("stack.down_bias")
            biases = [(self._ordered(first), second) for first, second in zip(*both, strict=True)]
        return [
            (
                parts.linear_of(self._ordered(self._outputs_first(gate_up[index])), first),
                parts.linear_of(self._outputs_first(down[index]), second),
            )
            for index, (first, second) in enumerate(biases)
        ]

    def _outputs_first(self, matrix: Tensor) -> Tensor:
        return matrix.T.contiguous() if self.inputs_first else matrix

    def _ordered(self, rows: Tensor) -> Tensor:
        """Gates before ups along the first dimension."""
        return torch.cat((rows[::2], rows[1::2])) if self.take_turns else rows
