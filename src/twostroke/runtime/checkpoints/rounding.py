"""Matrices rounded to integers, in the layouts of compressed-tensors.

int4: ``pack-quantized``, W4A16, a scale for 32 inputs of an output. int8: ``int-quantized``, W8A8,
a scale for an output; activations are rounded to int8 by token while the model runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostroke.kernels.library import GROUP

_WIDTHS = {"int4": 4, "int8": 8}
FORMATS = tuple(_WIDTHS)
# What the largest value of a group may be cut to: others gain what it loses.
_CUTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


class RoundedMatrix(NamedTuple):
    """Attributes:
    tensors: What is stored in place of ``weight``, by the last part of its name.
    error: The root of the mean squared difference, as a share of the matrix's own.
    """

    tensors: Mapping[str, Tensor]
    error: float


def can_round(shape: tuple[int, ...]) -> bool:
    """Whether a weight of this shape is a matrix whose inputs make whole groups."""
    return len(shape) == 2 and shape[0] > 0 and shape[1] > 0 and shape[1] % GROUP == 0


def round_matrix(weight: Tensor, to: str) -> RoundedMatrix:
    """Round ``[outputs, inputs]`` to one of ``FORMATS``.

    Scales have the weight's precision, at most float32.
    """
    wide = weight.float()
    groups = wide.view(len(wide), -1, GROUP) if to == "int4" else wide.unsqueeze(1)
    dtype = torch.float32 if weight.dtype == torch.float64 else weight.dtype
    codes, scales = _round_groups(groups, _WIDTHS[to], dtype)
    difference = (codes.float() * scales.float().unsqueeze(2) - groups).double()  # may be squared
    error = difference.norm() / groups.double().norm().clamp(min=torch.finfo(torch.float64).tiny)
    codes = codes.view(weight.shape)
    if to == "int8":
        return RoundedMatrix({"weight": codes, "weight_scale": scales}, float(error))
    tensors = {
        "weight_packed": _packed(codes),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    return RoundedMatrix(tensors, float(error))


def quantization_config(to: str, ignored: list[str]) -> dict[str, Any]:
    """What ``config.json`` says of it.

    Args:
        ignored: Modules that are not rounded.
    """
    weights: dict[str, Any] = {"type": "int", "num_bits": _WIDTHS[to], "symmetric": True}
    activations: dict[str, Any] | None = None
    if to == "int4":
        weights |= {"strategy": "group", "group_size": GROUP, "dynamic": False}
    else:
        activations = {**weights, "strategy": "token", "dynamic": True}
        weights |= {"strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if to == "int4" else "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
    }


def _round_groups(groups: Tensor, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Int8 ``[outputs, groups, inputs of a group]``, and scales ``[outputs, groups]``.

    In 4 bits the largest becomes -8, so that the whole range is used, as in llama.cpp's Q4_0; of
    several scales, each group has the one with the least squared error.
    """
    top = 2 ** (bits - 1) - 1
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))  # with its sign
    largest = torch.where(largest == 0, 1.0, largest)  # a group of zeros rounds to zeros by any
    ends = [-(top + 1) / cut for cut in _CUTS] if bits == 4 else [float(top)]
    best = torch.full_like(largest, torch.inf)
    codes, scales = torch.zeros_like(groups), torch.zeros_like(largest)
    for end in ends:
        scale = (largest / end).to(dtype).float()  # as it is stored
        inverse = torch.where(scale == 0, 0.0, 1 / scale)
        own = (groups * inverse).round_().clamp_(-top - 1, top)
        error = ((own * scale - groups) / largest).square_().sum(2, keepdim=True)
        is_better = error < best
        best = torch.where(is_better, error, best)
        codes = torch.where(is_better, own, codes)
        scales = torch.where(is_better, scale, scales)
    return codes.to(torch.int8), scales.squeeze(2).to(dtype)


def _packed(codes: Tensor) -> Tensor:
    """Eight values of -8 .. 7 a word, int32 ``[outputs, inputs / 8]``, the first lowest."""
    shifts = torch.arange(0, 32, 4)
    words = ((codes.long() + 8).view(len(codes), -1, 8) << shifts).sum(2)  # below 2**32
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
