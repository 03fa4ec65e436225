"""Experts whose weights lie in one tensor for all of them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twostroke.layers.linear import Linear, kept_linear
from twostroke.layers.mxfp4 import BLOCK, Mxfp4Linear, decode_mxfp4
from twostroke.layers.stored_weights import from_mxfp4
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
        mxfp4: In place of each matrix are ``{name}_blocks`` and ``{name}_scales``, see
            ``layers.mxfp4``, outputs first.
    """

    gate_up: str = "gate_up_proj"
    down: str = "down_proj"
    inputs_first: bool = False
    take_turns: bool = False
    mxfp4: bool = False

    def as_stored(self, prefixes: Sequence[str], names: Container[str]) -> ExpertStack:
        """This stack in a checkpoint's format; each layer's names begin with its prefix."""
        mxfp4 = any(f"{prefix}{self.gate_up}_blocks" in names for prefix in prefixes)
        return replace(self, mxfp4=mxfp4)

    def parameters(self, spec: ExpertsSpec, hidden: int, prefix: str) -> list[Parameter]:
        inner, size = 2 * spec.size, spec.size
        shapes = {"gate_up": (inner, hidden), "down": (hidden, size)}
        parameters = list[Parameter]()
        for name, (outputs, inputs) in shapes.items():
            # Gates and ups that take turns are divided as pairs.
            both = name == "gate_up" and not self.take_turns
            sections = (size, size) if both else ()
            own = prefix + (self.gate_up if name == "gate_up" else self.down)
            matrix = (inputs, outputs) if self.inputs_first else (outputs, inputs)
            if self.mxfp4:
                groups = (spec.count, outputs, inputs // BLOCK)
                for part, shape in (("blocks", (*groups, BLOCK // 2)), ("scales", groups)):
                    stored = ((f"{own}_{part}", shape),)
                    parameters.append(Parameter(f"stack.{name}_{part}", stored, True, sections))
            else:
                stored = ((own, (spec.count, *matrix)),)
                parameters.append(Parameter(f"stack.{name}", stored, False, sections))
            if spec.bias:
                bias = ((f"{own}_bias", (spec.count, outputs)),)
                parameters.append(Parameter(f"stack.{name}_bias", bias, False, sections))
        return parameters

    def experts(self, spec: ExpertsSpec, parts: BranchParts) -> list[tuple[Linear, Linear]]:
        """Gates with ups, and downs, of each expert."""
        both = [self._products(spec, parts, name) for name in ("gate_up", "down")]
        return list(zip(*both, strict=True))

    def _products(self, spec: ExpertsSpec, parts: BranchParts, name: str) -> list[Linear]:
        """One of each expert."""
        in_turns = self.take_turns and name == "gate_up"
        biases: list[Tensor | None] = [None] * spec.count
        if spec.bias:
            stored = parts.tensor(f"stack.{name}_bias")
            biases = [_untwined(bias) if in_turns else bias for bias in stored]
        if self.mxfp4:
            return self._as_stored(parts, name, biases, in_turns=in_turns)
        linears = list[Linear]()
        for weight, bias in zip(parts.tensor(f"stack.{name}"), biases, strict=True):
            rows = weight.T.contiguous() if self.inputs_first else weight
            linears.append(parts.linear_of(_untwined(rows) if in_turns else rows, bias))
        return linears

    def _as_stored(
        self, parts: BranchParts, name: str, biases: Sequence[Tensor | None], *, in_turns: bool
    ) -> list[Linear]:
        """Layers of weights kept in MXFP4; ``--quantization`` alone has them decoded now."""
        blocks, scales = parts.tensor(f"stack.{name}_blocks"), parts.tensor(f"stack.{name}_scales")
        linears = list[Linear]()
        for own_blocks, own_scales, bias in zip(blocks, scales, biases, strict=True):
            both = (own_blocks, own_scales)
            rows, factors = map(_untwined, both) if in_turns else both
            if parts.quantization is not None:
                weight = decode_mxfp4(rows, factors, torch.bfloat16)  # which rounding asks for
                linears.append(parts.linear_of(weight, bias))
            elif parts.kernels is not None:
                linears.append(kept_linear([from_mxfp4(rows, factors)], bias, parts.kernels))
            else:
                linears.append(Mxfp4Linear(rows, factors, bias))
        return linears


def _untwined(rows: Tensor) -> Tensor:
    """Gates before ups, where they take turns along the first dimension."""
    return torch.cat((rows[::2], rows[1::2]))
