"""The two tables that have a row for each token: the embedding, and the head."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.kernels.library import Library, load_library
from twostroke.layers.linear import Linear, PackedLinear, TorchLinear, make_linear
from twostroke.layers.stored_blocks import KeptWeight
from twostroke.models.parameters import ParameterSource, take_kept


class TokenTable:
    """One table ``[vocab, hidden]``, taken out of ``source``.

    Attributes:
        device, dtype: Of the rows that are looked up.
        is_kept: Whether it stays as it is stored.
    """

    def __init__(self, source: ParameterSource, name: str) -> None:
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
            return TorchLinear(weight)
        assert kernels is not None, "a weight stays as it is stored where kernels run"
        return PackedLinear(weight.packed(), None, kernels)

    def linear(self, quantization: str | None) -> Linear:
        """The layer from hidden states to scores of tokens."""
        if isinstance(self._weight, Tensor):
            return make_linear(self._weight, None, quantization, self.kernels())
        return self.rows()
