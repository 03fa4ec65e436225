"""Masks over the whole vocabulary, one per constrained row: what structured output allows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.sampling.transfer import moved, to_tensor


class TokenMask:
    """The tokens that one row may draw.

    Args:
        allowed: uint8 [ceil(vocab / 8)]; token ``t`` is bit ``t % 8`` of byte ``t // 8``.
        only_end: Nothing but end tokens is allowed, so ``min_tokens`` must not forbid them.
    """

    __slots__ = ("_biases", "allowed", "only_end")

    def __init__(self, allowed: NDArray[np.uint8], only_end: bool) -> None:
        self.allowed = allowed
        self.only_end = only_end
        self._biases: NDArray[np.float32] | None = None

    def biases(self) -> NDArray[np.float32]:
        """What to add to a row's logits on a CPU, float32 [8 * bytes]: 0, or -inf.

        The first call does the work: some 50 us for 128,000 tokens.
        """
        if self._biases is None:
            table = np.empty((len(self.allowed), 8), dtype=np.float32)
            np.take(_BIASES, self.allowed, axis=0, out=table, mode="clip")
            self._biases = table.reshape(-1)
        return self._biases


NO_MASKS: Mapping[int, TokenMask] = {}


def apply_token_masks(logits: Tensor, masks: Mapping[int, TokenMask]) -> None:
    """Set to -inf, in place, what the masks do not allow.

    Args:
        logits: float32 [rows, vocab].
        masks: By row.
    """
    if masks and logits.device.type == "cpu":
        apply_in_memory(logits, masks)
    elif masks:
        apply_on_device(logits, masks)


def apply_in_memory(logits: Tensor, masks: Mapping[int, TokenMask]) -> None:
    """Row by row, and not by PyTorch: starting its threads costs more than a row."""
    for row, mask in masks.items():
        values = logits[row].numpy()
        np.add(values, mask.biases()[: logits.shape[1]], out=values)


def apply_on_device(logits: Tensor, masks: Mapping[int, TokenMask]) -> None:
    """All rows at once; a bit per token crosses to the device."""
    vocab = logits.shape[1]
    packed = torch.from_numpy(np.stack([mask.allowed for mask in masks.values()]))
    packed = moved(packed, logits.device)  # [masked, bytes]
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, :vocab].bool()
    rows = to_tensor(list(masks), torch.int64, logits.device)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def _make_biases() -> NDArray[np.float32]:
    """For each byte of eight bits, what to add to eight logits: float32 [256, 8]."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(0), np.float32(-np.inf)).astype(np.float32)


_BIASES = _make_biases()
