"""A mixture of experts on a GPU: rows in the order of their experts, and nothing asks the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from twostroke.kernels.triton.grouped_products import multiply_grouped, multiply_grouped_codes
from twostroke.layers.gpu.fp8_linear import Fp8Linear
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.gpu.quantized_linear import CodeMatrix, QuantizedLinear
from twostroke.layers.linear import Linear, TorchLinear

# Pairs of a row and an expert that an expert must have on average for the larger tiles.
MANY_PAIRS = 32


class _Tiles(NamedTuple):
    """Which pairs each tile takes, see ``multiply_grouped``; ``rows`` of each."""

    order: Tensor
    experts: Tensor
    starts: Tensor
    ends: Tensor
    rows: int


class _Stack(NamedTuple):
    """One product of all experts.

    Attributes:
        weights: ``[experts, outputs, inputs]``, or codes and scales with a dimension more.
        biases: ``[experts, outputs]``.
    """

    weights: Tensor | CodeMatrix
    biases: Tensor | None


# Layers of which one kernel computes many.
GroupedLinear = TorchLinear | QuantizedLinear | Fp8Linear


class GpuExperts:
    """The MLPs of all experts, whose weights it takes over.

    Args:
        experts: Gates with ups, and downs, of each. Their weights become parts of one tensor.
        activation: What comes between the two products.
        scales_inputs: Whether rows are multiplied with their weights before, not after.
    """

    def __init__(
        self,
        experts: Sequence[tuple[GroupedLinear, GroupedLinear]],
        activation: Callable[[Tensor], Tensor],
        operators: GpuOperators,
        *,
        scales_inputs: bool,
    ) -> None:
        self._gate_up, self._down = (_stack([pair[i] for pair in experts]) for i in range(2))
        self._activation, self._operators = activation, operators
        self._scales_inputs = scales_inputs
        self._count = len(experts)

    @staticmethod
    def take(
        experts: Sequence[tuple[Linear, Linear]],
    ) -> list[tuple[GroupedLinear, GroupedLinear]]:
        """The layers, if kernels can run them: matrices of one kind in each place; else none."""
        for linears in zip(*experts):
            if len({_kind_of(linear) for linear in linears} - {None}) != 1:
                return []
            if any(_kind_of(linear) is None for linear in linears):
                return []
        return list(experts)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Float32 ``[tokens, hidden]``; each token's experts are summed in the order of choice.

        Args:
            x: ``[tokens, inputs]``.
            chosen: Experts of each token, int64 ``[tokens, per_token]``.
            weights: Theirs, float32 ``[tokens, per_token]``.
        """
        tokens, per_token = chosen.shape
        tiles = self._tiles(chosen.flatten())
        pairs_of_row = per_token
        if self._scales_inputs:
            x = (x[:, None] * weights[..., None].to(x.dtype)).flatten(0, 1)
            pairs_of_row = 1
        inner = self._activation(self._multiply(x, self._gate_up, tiles, pairs_of_row))
        outputs = self._multiply(inner, self._down, tiles, 1)
        mixed = outputs.view(tokens, per_token, -1).float()
        return mixed.sum(1) if self._scales_inputs else (mixed * weights[..., None]).sum(1)

    def _tiles(self, chosen: Tensor) -> _Tiles:
        """Cut the pairs into tiles of one expert each, on the device: as many as there may be."""
        pairs = len(chosen)
        rows = 64 if pairs >= MANY_PAIRS * self._count else 16
        order = chosen.argsort(stable=True)
        counts = torch.zeros(self._count, dtype=torch.int64, device=chosen.device)
        counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        ends, tile_ends = counts.cumsum(0), ((counts + rows - 1) // rows).cumsum(0)
        numbers = torch.arange(
            pairs // rows + min(pairs, self._count), device=chosen.device, dtype=torch.int64
        )
        expert = torch.searchsorted(tile_ends, numbers, right=True)
        exists = expert < self._count
        expert.clamp_(max=self._count - 1)
        before = tile_ends[expert] - (counts[expert] + rows - 1) // rows
        starts = ends[expert] - counts[expert] + (numbers - before) * rows
        experts = torch.where(exists, expert, -1)
        return _Tiles(order, experts.int(), starts.int(), ends.int(), rows)

    def _multiply(self, x: Tensor, stack: _Stack, tiles: _Tiles, pairs_of_row: int) -> Tensor:
        weights = stack.weights
        matrix = weights.codes if isinstance(weights, CodeMatrix) else weights
        outputs, inputs = matrix.shape[1], x.shape[1]
        pairs, own = len(tiles.order), self._operators
        out = torch.empty(pairs, outputs, dtype=x.dtype, device=x.device)
        columns, step = (32, 256) if tiles.rows == 16 else (64, 64)
        step = min(step, max(32, triton.next_power_of_2(inputs)))
        grid = triton.cdiv(outputs, columns), len(tiles.experts)
        places = tiles.order, tiles.experts, tiles.starts, tiles.ends, outputs, x.stride(0)
        sizes = pairs_of_row, inputs, tiles.rows, columns, step
        form = stack.biases is not None, own.product_type(x.dtype), own.overlaps
        options = {"num_warps": 4, "num_stages": 3, "launch_pdl": own.overlaps}
        if isinstance(weights, CodeMatrix):
            bits = weights.bits, weights.zeros is not None
            multiply_grouped_codes[grid](
                x, *weights, stack.biases, out, *places, *sizes, *bits, *form, **options
            )
        else:
            multiply_grouped[grid](x, weights, stack.biases, out, *places, *sizes, *form, **options)
        return out


def _kind_of(linear: Linear) -> tuple[object, ...] | None:
    """What all experts must share; ``None``: no kernel groups such a layer."""
    if isinstance(linear, TorchLinear):
        return (linear.bias is None,)
    if isinstance(linear, QuantizedLinear | Fp8Linear):
        codes, _, zeros = linear.matrix
        return codes.dtype, codes.shape, zeros is None, linear.bias is None
    return None


def _stack(linears: Sequence[GroupedLinear]) -> _Stack:
    """All weights in one tensor, of which the layers keep views: nothing is there twice."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.stack(biases) if biases else None
    plain = [own for own in linears if isinstance(own, TorchLinear)]
    if plain:
        weights = _joined([own.weight for own in plain])
        for own, weight in zip(plain, weights):
            own.weight = weight
        return _Stack(weights, bias)
    coded = [own for own in linears if not isinstance(own, TorchLinear)]
    codes = _joined([own.matrix.codes for own in coded])
    scales = _joined([own.matrix.scales for own in coded])
    points = [own.matrix.zeros for own in coded if own.matrix.zeros is not None]
    zeros = _joined(points) if points else None
    for index, linear in enumerate(coded):
        own_zeros = None if zeros is None else zeros[index]
        linear.matrix = CodeMatrix(codes[index], scales[index], own_zeros)
    return _Stack(CodeMatrix(codes, scales, zeros), bias)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    joined = torch.empty((len(parts), *first.shape), dtype=first.dtype, device=first.device)
    for place, part in zip(joined, parts):
        place.copy_(part)
    return joined
