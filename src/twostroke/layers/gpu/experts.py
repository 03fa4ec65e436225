"""A mixture of experts on a GPU: rows in the order of their experts, and nothing asks the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from twostroke.kernels.triton.grouped_products import multiply_grouped
from twostroke.layers.gpu.operators import GpuOperators
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
    """One product of all experts: ``[experts, outputs, inputs]``, ``[experts, outputs]``."""

    weights: Tensor
    biases: Tensor | None


class GpuExperts:
    """The MLPs of all experts, whose weights it takes over.

    Args:
        experts: Gates with ups, and downs, of each. Their weights become parts of one tensor.
        activation: What comes between the two products.
        scales_inputs: Whether rows are multiplied with their weights before, not after.
    """

    def __init__(
        self,
        experts: Sequence[tuple[TorchLinear, TorchLinear]],
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
    def take(experts: Sequence[tuple[Linear, Linear]]) -> list[tuple[TorchLinear, TorchLinear]]:
        """The layers, if the kernel can run them: plain matrices; else none."""
        taken = [(up, down) for up, down in experts if _is_plain(up) and _is_plain(down)]
        return taken if len(taken) == len(experts) else []  # type: ignore[return-value]

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
        _, outputs, inputs = stack.weights.shape
        pairs, own = len(tiles.order), self._operators
        out = torch.empty(pairs, outputs, dtype=x.dtype, device=x.device)
        columns, step = (32, 256) if tiles.rows == 16 else (64, 64)
        step = min(step, max(16, triton.next_power_of_2(inputs)))
        multiply_grouped[triton.cdiv(outputs, columns), len(tiles.experts)](
            x, stack.weights, stack.biases, out, tiles.order, tiles.experts, tiles.starts,
            tiles.ends, outputs, x.stride(0), pairs_of_row, inputs, tiles.rows, columns, step,
            stack.biases is not None, own.product_type(x.dtype), own.overlaps,
            num_warps=4, num_stages=3, launch_pdl=own.overlaps,
        )  # fmt: skip
        return out


def _is_plain(linear: Linear) -> bool:
    return isinstance(linear, TorchLinear)


def _stack(linears: Sequence[TorchLinear]) -> _Stack:
    """All weights in one tensor, of which the layers keep views: nothing is there twice."""
    first = linears[0]
    shape = (len(linears), *first.weight.shape)
    weights = torch.empty(shape, dtype=first.weight.dtype, device=first.weight.device)
    for place, linear in zip(weights, linears):
        place.copy_(linear.weight)
        linear.weight = place
    if first.bias is None:
        return _Stack(weights, None)
    return _Stack(weights, torch.stack([own.bias for own in linears if own.bias is not None]))
