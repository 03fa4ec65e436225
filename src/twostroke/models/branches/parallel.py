"""Branches that read the same hidden state, as in Cohere's models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import Branch, BranchKind, BranchParts, PassInputs, asks_host
from twostroke.models.parameters import Parameter


@dataclass(frozen=True, slots=True)
class ParallelKind:
    """Kinds whose branches are added to the same ``x``, see ``BranchKind``.

    Those that mix tokens come first.
    """

    kinds: tuple[BranchKind, ...]

    def is_in(self, layer: LayerSpec) -> bool:
        return any(kind.is_in(layer) for kind in self.kinds)

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        own = [kind for kind in self.kinds if kind.is_in(layer)]
        return [parameter for kind in own for parameter in kind.parameters(layer, hidden)]

    def build(self, layer: LayerSpec, parts: BranchParts) -> ParallelBranch:
        own = [kind for kind in self.kinds if kind.is_in(layer)]
        return ParallelBranch([kind.build(layer, parts) for kind in own])


class ParallelBranch:
    """``x + f(norm(x)) + g(norm(x))``, see ``Branch``."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._branches = branches
        self._last_mixing = [branch for branch in branches if branch.mixes_tokens][-1:]
        self.mixes_tokens = any(branch.mixes_tokens for branch in branches)
        self.state = tuple(shape for branch in branches for shape in branch.state)
        self.asks_host = any(map(asks_host, branches))

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x = hidden.sum()
        added = Hidden(x if onto is None else onto)
        for branch in self._branches:
            if branch in self._last_mixing or not self.mixes_tokens:
                added = branch(Hidden(x), step, rows, added.sum())
                x, rows = x if rows is None else x[rows], None
            else:
                added = branch(Hidden(x), step, None, added.sum())
        return added

    @property
    def linears(self) -> tuple[Linear, ...]:
        return tuple(linear for branch in self._branches for linear in branch.linears)

    def compiled(self) -> CompiledBranch | None:
        match [branch.compiled() for branch in self._branches]:
            case [only]:
                return only
            case [CompiledBranch() as first, CompiledBranch() as second]:
                return replace(first, beside=second)
        return None
