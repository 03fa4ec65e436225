"""The seam between the decoder and what its layers consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.attention.base import Attention
from twostroke.layers.compiled_pass import CompiledBranch
from twostroke.layers.linear import Linear, make_linear
from twostroke.layers.norm import RMSNorm
from twostroke.layers.recurrent_state import LayerStates, StateShape
from twostroke.layers.rotary import Rotation
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.models.parameters import Parameter, ParameterSource
from twostroke.observability.profile import Profiler


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What branches read of a step besides the hidden state.

    Attributes:
        rotations: Angles of its tokens, by how many elements of a head are rotated.
        attention: Called at most once per layer.
        states: Of recurrent layers.
    """

    rotations: Mapping[int, Rotation]
    attention: Attention
    states: LayerStates


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

    def __call__(self, x: Tensor, step: PassInputs, rows: Tensor | None) -> Tensor:
        """Map ``[tokens, hidden]`` to ``[rows, hidden]``, which may be ``x`` itself, changed.

        Args:
            rows: Which tokens' states go on, int64; ``None`` is all.
        """
        ...

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its large matrices: their bytes are counted, and rounded under ``--quantization``."""
        ...

    def compiled(self) -> CompiledBranch | None:
        """The branch as the compiled pass runs it, or ``None`` if that cannot."""
        ...


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
        index: Of the layer.
        quantization: ``int8`` or ``int4`` rounds the weights of linear layers.
        kernels: The compiled kernels, if they are to be used.
    """

    index: int
    norm_eps: float
    source: ParameterSource
    quantization: str | None
    kernels: Library | None
    profiler: Profiler

    def tensor(self, name: str) -> Tensor:
        return self.source.pop(f"{self.index}.{name}")

    def linear(self, name: str) -> Linear:
        has_bias = f"{self.index}.{name}.bias" in self.source
        weight = self.tensor(f"{name}.weight")
        bias = self.tensor(f"{name}.bias") if has_bias else None
        return make_linear(weight, bias, self.quantization, self.kernels)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.tensor(name), self.norm_eps, self.kernels)
