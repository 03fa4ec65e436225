"""Branches within which much is multiplied, as in Falcon-H1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.norm import MultipliedNorm, Norm
from twostroke.model_spec.factors import Multipliers
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.recurrent_forms import Mamba2Form
from twostroke.models.branches.base import Branch, BranchKind, BranchParts
from twostroke.models.parameters import Parameter


@dataclass(frozen=True, slots=True)
class MultipliedKind:
    """A kind with a layer's ``Multipliers``, if there are any, see ``BranchKind``."""

    kind: BranchKind
    of: Literal["attention", "state", "mlp"]

    def is_in(self, layer: LayerSpec) -> bool:
        return self.kind.is_in(layer)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        return self.kind.parameters(layer, hidden)

    def build(self, layer: LayerSpec, parts: BranchParts) -> Branch:
        if (own := layer.multipliers) is not None:
            parts = self._multiplied(layer, own, parts)
        return self.kind.build(layer, parts)

    def _multiplied(self, layer: LayerSpec, own: Multipliers, parts: BranchParts) -> BranchParts:
        if self.of == "attention":
            inputs, output = own.attention_input, own.attention_output
        elif self.of == "state":
            inputs, output = own.state_input, own.state_output
        else:
            inputs, output = 1.0, own.mlp_output

        def make_norm(weight: Tensor, eps: float, library: Library | None) -> Norm:
            norm = parts.make_norm(weight, eps, library)
            return norm if inputs == 1.0 else MultipliedNorm(norm, inputs)

        residual_scale = parts.residual_scale * output
        factors = self._factors(layer, own)
        return replace(parts, make_norm=make_norm, residual_scale=residual_scale, factors=factors)

    def _factors(self, layer: LayerSpec, own: Multipliers) -> dict[str, Tensor]:
        """The factors of linear layers' outputs by the layers' names, float32 ``[outputs]``."""
        form = layer.recurrent.form if layer.recurrent else None
        if self.of == "state" and isinstance(form, Mamba2Form):
            shared = form.groups * form.state
            sizes = torch.tensor([form.inner, form.inner, shared, shared, form.heads])
            return {"mamba_input": torch.tensor(own.state_parts).repeat_interleave(sizes)}
        if self.of == "mlp" and layer.mlp is not None:
            sizes = torch.tensor([layer.mlp.size] * 2)
            return {"gate_up": torch.tensor([own.gate, 1.0]).repeat_interleave(sizes)}
        return {}
