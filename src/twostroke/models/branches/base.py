"""The seam between the decoder and what its layers consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from twostroke.distributed.ranks import Ranks
from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.linear import Linear, MultipliedLinear, kept_linear, make_linear
from twostroke.layers.norm import MakeNorm, Norm
from twostroke.layers.recurrent_state import LayerStates, StateShape
from twostroke.layers.rotary import Rotation
from twostroke.layers.stored_blocks import KeptWeight
from twostroke.layers.stored_weights import StoredWeight
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.rope import RopeSpec
from twostroke.models.branches.addition import Addition, Hidden
from twostroke.models.parameters import AdaptableSource, Parameter, ParameterSource, take_kept
from twostroke.observability.profile import Profiler

Rotations = Mapping[tuple[RopeSpec, int], Rotation]


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What branches read of a step besides the hidden state.

    Attributes:
        rotations: Angles of its tokens, by how and by how many elements of a head are rotated.
        attention: Called at most once per layer.
        states: States of recurrent layers.
        layer_inputs: For models whose layers have embeddings of their own, ``[tokens, layers,
            size]``.
        positions: The tokens' positions, int64 ``[tokens]``.
        rows: Which tokens go on after the last branch that mixes them; ``None`` is all.
    """

    rotations: Rotations
    attention: Attention
    states: LayerStates
    layer_inputs: Tensor | None = None
    rows: Tensor | None = None
    positions: Tensor | None = None


class Branch(Protocol):
    """One addition to the hidden state of a layer: ``x + f(norm(x))``.

    It owns its weights and nothing that lasts between two calls; only ``attention`` and ``states``
    know which tokens belong together.

    Attributes:
        mixes_tokens: Whether a token's result depends on the hidden states of other tokens.
        state: What a request keeps of it from token to token; nothing but of recurrent layers.
    """

    mixes_tokens: bool
    state: tuple[StateShape, ...]

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        """Map ``[tokens, hidden]`` to ``[rows, hidden]``, which may be ``hidden.x``, changed.

        Args:
            rows: Which tokens' states go on, int64; ``None`` is all.
            onto: ``[rows, hidden]`` that is added to, and may be changed, in place of ``hidden``.
        """
        ...

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its large matrices: their bytes are counted, and rounded under ``--quantization``."""
        ...

    def compiled(self) -> CompiledBranch | None:
        """The branch as the compiled pass runs it, or ``None`` if that cannot."""
        ...


def asks_host(branch: Branch) -> bool:
    """Whether a call has to wait for numbers, to know what to compute: no branch does but a few."""
    return bool(getattr(branch, "asks_host", False))


class BranchKind(Protocol):
    """What a model family's file lists: how a kind of branch is named in checkpoints, and made."""

    def is_in(self, layer: LayerSpec) -> bool:
        """Whether such a layer has this branch."""
        ...

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        """What to load, in names relative to the layer's."""
        ...

    def build(self, layer: LayerSpec, parts: BranchParts) -> Branch:
        """The branch, with parameters that it takes from ``parts``."""
        ...


@dataclass(frozen=True, slots=True)
class BranchParts:
    """What one layer's branches are made of.

    Attributes:
        index: The layer's index.
        make_norm: Makes the norms of the family.
        residual_scale: See ``LayerSpec``.
        quantization: ``int8`` or ``int4`` rounds the weights of linear layers.
        kernels: The compiled kernels, if they are to be used.
        factors: What outputs of linear layers are multiplied with, float32 ``[outputs]``, by name.
        ranks: The processes among which the model is divided; ``None``: there is one.
    """

    index: int
    make_norm: MakeNorm
    norm_eps: float
    residual_scale: float
    source: ParameterSource
    quantization: str | None
    kernels: Library | None
    profiler: Profiler
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    ranks: Ranks | None = None

    def tensor(self, name: str) -> Tensor:
        return self.source.pop(f"{self.index}.{name}")

    def has(self, name: str) -> bool:
        return f"{self.index}.{name}" in self.source

    def linear(self, name: str, order: Tensor | None = None, *, is_exact: bool = False) -> Linear:
        """A linear layer.

        Args:
            order: The order of its outputs, ``[outputs]``; by default the checkpoint's.
            is_exact: ``--quantization`` does not round it.
        """
        bias = self.tensor(f"{name}.bias") if self.has(f"{name}.bias") else None
        if bias is not None and order is not None:
            bias = bias[order.to(bias.device)]
        kept = self._kept(f"{name}.weight", whole=order is not None) if not is_exact else []
        device = torch.device("cpu")
        if kept:
            kept = kept if order is None else [kept[0].reordered(order)]
            if isinstance(kept[0], StoredWeight):
                device = kept[0].codes.device
            linear: Linear = kept_linear(kept, bias, self.kernels)
        else:
            weight = self.tensor(f"{name}.weight")
            device = weight.device
            weight = weight if order is None else weight[order.to(device)]
            quantization = None if is_exact else self.quantization
            linear = make_linear(weight, bias, quantization, self.kernels)
        if (factor := self.factors.get(name)) is None:
            if isinstance(self.source, AdaptableSource):
                return self.source.adaptable(f"{self.index}.{name}", linear, order)
            return linear
        return MultipliedLinear(linear, factor.to(device))

    def _kept(self, name: str, *, whole: bool) -> list[KeptWeight]:
        return take_kept(self.source, f"{self.index}.{name}", whole=whole)

    def linear_of(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """A linear layer of tensors that are already loaded."""
        return make_linear(weight, bias, self.quantization, self.kernels)

    def norm(self, name: str) -> Norm:
        return self.make_norm(self.tensor(name), self.norm_eps, self.kernels)

    def optional_norm(self, name: str) -> Norm | None:
        return self.norm(name) if self.has(name) else None

    def addition(self, name: str, norm: str, *, is_divided: bool = True) -> Addition:
        """A branch's last product, and the norm of what it adds, where the family has one.

        Args:
            is_divided: Each of ``ranks`` has some of its inputs.
        """
        ranks = self.ranks if is_divided else None
        return Addition(self.linear(name), self.optional_norm(norm), self.residual_scale, ranks)
