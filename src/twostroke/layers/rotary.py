"""Rotary position embedding (Su et al. 2021), and the ways to stretch it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from twostroke.kernels.library import Library
from twostroke.layers.gpu.load import load_operators
from twostroke.model_spec.rope import RopeSpec

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

# Kinds of stretching for which angles are computed here.
ROPE_KINDS = ("default", "linear", "llama3", "yarn", "proportional", "longrope")


class Rotation(Protocol):
    """Angles of one step's tokens, ready to be applied in every layer."""

    def apply(self, x: Tensor) -> Tensor:
        """Rotate heads ``[tokens, heads, head_dim]``; returns x itself, changed, or a new tensor.

        Element i is paired with i + head_dim / 2, as Hugging Face does.
        """
        ...


class TorchRotation(NamedTuple):
    """PyTorch's operators: both tables float32 ``[tokens, 1, head_dim]``."""

    cos: Tensor
    signed_sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        swapped = torch.roll(x, half, -1)
        return torch.addcmul(x * self.cos, swapped, self.signed_sin).to(x.dtype)


class CompiledRotation(NamedTuple):
    """The compiled kernel, in place: bfloat16 on a CPU.

    Tables are float32 ``[max_length, head_dim / 2]``.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    library: Library

    def apply(self, x: Tensor) -> Tensor:
        tokens, heads, head_dim = x.shape
        tables = (self.positions.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr())
        self.library.rotate(x.data_ptr(), x.stride(0), tokens, heads, head_dim, *tables)
        return x


class GpuRotation(NamedTuple):
    """The Triton kernel, in place; tables as the compiled kernel's."""

    positions: Tensor
    cos: Tensor
    sin: Tensor
    operators: GpuOperators

    def apply(self, x: Tensor) -> Tensor:
        return self.operators.rotate(x, self.positions, self.cos, self.sin)


class RotaryTable:
    """Cosines and sines of every position, float32 ``[max_length, head_dim / 2]`` each.

    Args:
        library: The compiled kernels, if they are to be used: bfloat16 heads on a CPU.
    """

    __slots__ = ("_gpu", "_library", "cos", "sin")

    def __init__(
        self,
        rope: RopeSpec,
        head_dim: int,
        max_length: int,
        device: torch.device,
        library: Library | None = None,
    ) -> None:
        frequencies, scale = rope_frequencies(rope, head_dim, max_length)
        positions = torch.arange(max_length, dtype=torch.float32)
        angles = positions[:, None] * frequencies  # [positions, head_dim / 2]
        self.cos = (angles.cos() * scale).to(device)
        self.sin = (angles.sin() * scale).to(device)
        self._library = library
        self._gpu = load_operators(device) if library is None else None

    def rotation(self, positions: Tensor) -> Rotation:
        """The angles of ``positions`` ``[tokens]`` (int64), once per step."""
        if self._library is not None:
            return CompiledRotation(positions, self.cos, self.sin, self._library)
        if self._gpu is not None:
            return GpuRotation(positions, self.cos, self.sin, self._gpu)
        cos, sin = self.cos[positions], self.sin[positions]  # [tokens, head_dim / 2]
        return TorchRotation(
            torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)
        )


def rotary_tables(
    ropes: Iterable[tuple[RopeSpec | None, int]],
    max_length: int,
    device: torch.device,
    library: Library | None,
) -> dict[tuple[RopeSpec, int], RotaryTable]:
    """One table for each way to rotate: a rope, and how many elements of a head it turns."""
    return {
        (rope, width): RotaryTable(rope, width, max_length, device, library)
        for rope, width in dict.fromkeys(ropes)
        if rope is not None
    }


def rope_frequencies(rope: RopeSpec, head_dim: int, max_length: int) -> tuple[Tensor, float]:
    """(angle per position of each pair of elements, factor on cosines and sines).

    The angles are float32 ``[head_dim / 2]``. ``max_length``: tokens of the longest request;
    longrope chooses its factors by it.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "proportional":  # Gemma 4: the other pairs stand still
        base[int(rope.proportion * head_dim // 2) :] = 0.0
    if rope.kind in ("linear", "proportional"):
        return base / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, base), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, base, head_dim)
    if rope.kind == "longrope":
        return _longrope(rope, base, max_length)
    return base, 1.0


def _llama3(rope: RopeSpec, base: Tensor) -> Tensor:
    """Llama 3.1: slow waves are stretched by ``factor``, fast ones kept, others interpolated."""
    turns = rope.original_length * base / (2 * math.pi)  # full turns over the original context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * base / rope.factor + smooth * base
    scaled = torch.where(turns < rope.low_freq_factor, base / rope.factor, blended)
    return torch.where(turns > rope.high_freq_factor, base, scaled)


def _longrope(rope: RopeSpec, base: Tensor, max_length: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024): a factor for each pair."""
    is_long = rope.has_long_factors(max_length)
    factors = torch.tensor(rope.long_factors if is_long else rope.short_factors)
    scale = rope.attention_factor
    if scale is None:
        stretched = math.log(rope.factor) / math.log(rope.original_length)
        scale = math.sqrt(1 + stretched) if rope.factor > 1 else 1.0
    return base / factors, scale


def _yarn(rope: RopeSpec, base: Tensor, head_dim: int) -> tuple[Tensor, float]:
    """Yarn (Peng et al. 2023): a linear ramp over dimensions from kept to stretched frequencies."""

    def dimension(turns: float) -> float:
        return (
            head_dim
            * math.log(rope.original_length / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # a ramp of no width would divide by zero
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    frequencies = base / rope.factor * stretched + base * (1 - stretched)
    scale = rope.attention_factor
    if scale is None:
        scale = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return frequencies, scale
