"""The two tables that have a row for each token: the embedding, and the head."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.distributed.ranks import Ranks
from twostroke.kernels.calls import LinearCall
from twostroke.kernels.library import Library, load_library
from twostroke.layers.linear import Linear, PackedLinear, TorchLinear, make_linear
from twostroke.layers.stored_blocks import KeptWeight
from twostroke.models.parameters import ParameterSource, take_kept


class TokenTable:
    """One table ``[vocab, hidden]``, taken out of ``source``.

    Args:
        vocab: Its rows, of which ``source`` may have some.
        ranks: The processes of which each has as many.

    Attributes:
        device, dtype: Of the rows that are looked up.
        is_kept: Whether it stays as it is stored.
    """

    def __init__(
        self, source: ParameterSource, name: str, vocab: int, ranks: Ranks | None = None
    ) -> None:
        self._vocab, self._ranks = vocab, ranks
        kept = take_kept(source, name, whole=True)
        self._weight: Tensor | KeptWeight = kept[0] if kept else source.pop(name)
        rows = self._weight if isinstance(self._weight, Tensor) else None
        self.is_kept = rows is None
        self.device = torch.device("cpu") if rows is None else rows.device
        self.dtype = torch.bfloat16 if rows is None else rows.dtype

    def kernels(self) -> Library | None:
        """The compiled kernels, if they compute with such weights."""
        on_cpu = self.device.type == "cpu" and self.dtype == torch.bfloat16
        return load_library() if on_cpu else None

    def rows(self) -> Linear:
        """What rows are looked up in; it need not be fast as a layer."""
        weight, kernels = self._weight, self.kernels()
        if isinstance(weight, Tensor):
            return self._of_all(TorchLinear(weight))
        assert kernels is not None, "a weight stays as it is stored where kernels run"
        return self._of_all(PackedLinear(weight.packed(), None, kernels))

    def linear(self, quantization: str | None) -> Linear:
        """The layer from hidden states to scores of tokens."""
        if isinstance(self._weight, Tensor):
            return self._of_all(make_linear(self._weight, None, quantization, self.kernels()))
        return self.rows()

    def _of_all(self, own: Linear) -> Linear:
        weight = self._weight
        rows = len(weight) if isinstance(weight, Tensor) else weight.outputs
        if self._ranks is None or rows == self._vocab:
            return own
        return DividedTable(own, rows, self._ranks)


class DividedTable:
    """A table of whose rows each process has ``rows``, in the order of ranks."""

    kernel_call: LinearCall | None = None

    def __init__(self, own: Linear, rows: int, ranks: Ranks) -> None:
        self._own, self._rows, self._ranks = own, rows, ranks
        self.inputs, self.is_exact, self.nbytes = own.inputs, own.is_exact, own.nbytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self.wide(x).to(x.dtype)
        return out if residual is None else residual + out

    def adds(self, x: Tensor) -> bool:
        return False

    def wide(self, x: Tensor) -> Tensor:
        return self._ranks.join_columns(self._own.wide(x))

    def weight_rows(self, indices: Tensor) -> Tensor:
        own = indices - self._ranks.rank * self._rows
        is_here = (own >= 0) & (own < self._rows)
        rows = self._own.weight_rows(own.clamp(0, self._rows - 1))
        rows.masked_fill_(~is_here[:, None], 0)
        return self._ranks.sum(rows).to(rows.dtype)  # of which all but one are zero
