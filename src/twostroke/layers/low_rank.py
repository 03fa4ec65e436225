"""Linear layers whose rows may each have an addition of low rank (LoRA, Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from twostroke.kernels.calls import LinearCall, LowRankCall
from twostroke.kernels.library import Library
from twostroke.layers.compiled.decoder_pass import CompiledAdditions
from twostroke.layers.linear import Linear, make_linear


class LowRank:
    """``scale * (x A^T) B^T`` of a linear layer, fused as the layer is.

    With compiled kernels a row's result does not depend on other rows, as in ``PackedLinear``. What
    lies between the two products has x's precision.

    Args:
        down: A, ``[rank, in]``: those of all parts, one under the other.
        up: B, ``[out, rank]``: those of all parts, zero where a part does not reach.
        scales: float32 ``[rank]``.
    """

    def __init__(self, down: Tensor, up: Tensor, scales: Tensor, library: Library | None) -> None:
        self._down = make_linear(down, None, None, library)
        self._up = make_linear(up, None, None, library)
        self._scales = scales

    @property
    def kernel_call(self) -> LowRankCall | None:
        """The compiled pass's, valid as long as this lives; ``None`` if PyTorch computes."""
        down, up = self._down.kernel_call, self._up.kernel_call
        if down is None or up is None:
            return None
        return LowRankCall(down=down, up=up, scales=self._scales.data_ptr())

    @property
    def nbytes(self) -> int:
        return self._down.nbytes + self._up.nbytes

    def onto(self, x: Tensor, out: Tensor) -> Tensor:
        """``out`` ``[rows, out]`` and what ``x`` ``[rows, in]`` adds to it."""
        inner = (self._down.wide(x) * self._scales).to(x.dtype)  # [rows, rank]
        return self._up(inner, residual=out)


Additions = Mapping[str, LowRank]  # of one adapter, by the names of linear layers


def compile_additions(num_layers: int, adapters: Sequence[Additions]) -> CompiledAdditions | None:
    """These additions for the compiled pass, or ``None`` where PyTorch computes some."""
    calls = list[dict[tuple[int, str], LowRankCall]]()
    for additions in adapters:
        own = dict[tuple[int, str], LowRankCall]()
        for name, low_rank in additions.items():
            if (call := low_rank.kernel_call) is None:
                return None
            layer, _, linear = name.partition(".")
            own[int(layer), linear] = call
        calls.append(own)
    return CompiledAdditions(num_layers, calls, tuple(adapters))


class RowGroup(NamedTuple):
    """Rows of a pass that have the same additions.

    Attributes:
        rows: int64; a slice where they lie one after the other, which needs no copy.
    """

    additions: Additions
    rows: Tensor | slice


class PassAdditions:
    """What the layers of one model add in the pass that is under way; nothing between two.

    One pass at a time.
    """

    def __init__(self) -> None:
        self._additions: Sequence[Additions] = ()
        self._owners: dict[int, Tensor] = {}  # by the number of rows
        self._groups: dict[int, Sequence[RowGroup]] = {}

    @contextmanager
    def during(
        self, owners: Tensor, additions: Sequence[Additions], rows: Tensor | None
    ) -> Iterator[None]:
        """Add in the pass that is run inside.

        Args:
            owners: int64 ``[tokens]``, each token's index in ``additions``, or -1.
            rows: The tokens that go on after the last attention; ``None``: all.
        """
        self._additions, self._owners = additions, {len(owners): owners}
        if rows is not None and len(rows) != len(owners):
            self._owners[len(rows)] = owners[rows]
        try:
            yield
        finally:
            self._additions, self._owners, self._groups = (), {}, {}

    def of(self, num_rows: int) -> Sequence[RowGroup]:
        """What to add to a layer's output of so many rows: of all tokens, or of those kept."""
        if not self._owners:
            return ()
        if (groups := self._groups.get(num_rows)) is not None:
            return groups
        if (owners := self._owners.get(num_rows)) is None:
            raise RuntimeError(f"a layer has {num_rows} rows, and additions are for other numbers")
        groups = self._groups[num_rows] = _groups(owners, self._additions)
        return groups


class AdaptedLinear:
    """Another layer, and what the pass adds to its outputs, see ``Linear``.

    A row to which nothing is added is the other layer's, bit by bit.
    """

    __slots__ = ("_linear", "_name", "_pass")

    def __init__(self, linear: Linear, name: str, additions: PassAdditions) -> None:
        self._linear, self._name, self._pass = linear, name, additions

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self._linear(x, residual)
        for additions, rows in self._pass.of(len(x)):
            if (own := additions.get(self._name)) is None:
                continue
            if isinstance(rows, slice):
                out[rows] = own.onto(x[rows], out[rows])
            else:  # several times as fast as with brackets
                added = own.onto(x.index_select(0, rows), out.index_select(0, rows))
                out.index_copy_(0, rows, added)
        return out

    def adds(self, x: Tensor) -> bool:
        return True  # what a pass adds comes after it

    def wide(self, x: Tensor) -> Tensor:
        """The other layer's alone: none that may be added to is asked for it."""
        return self._linear.wide(x)

    def weight_rows(self, indices: Tensor) -> Tensor:
        return self._linear.weight_rows(indices)

    @property
    def inputs(self) -> int:
        return self._linear.inputs

    @property
    def is_exact(self) -> bool:
        return self._linear.is_exact

    @property
    def nbytes(self) -> int:
        return self._linear.nbytes

    @property
    def kernel_call(self) -> LinearCall | None:
        """The other layer's alone: the compiled pass knows additions by its own table."""
        return self._linear.kernel_call


def _groups(owners: Tensor, additions: Sequence[Additions]) -> list[RowGroup]:
    groups = []
    for index, own in enumerate(additions):
        rows = torch.nonzero(owners == index)[:, 0]
        if not len(rows):
            continue
        first, end = int(rows[0]), int(rows[-1]) + 1
        is_run = end - first == len(rows)
        groups.append(RowGroup(own, slice(first, end) if is_run else rows))
    return groups
