"""Which tiles suit products of few rows, beside cuBLAS and weights of 8 and 4 bits.

python -m benchmarks.gpu.products
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from benchmarks.gpu.environment import Record
from twostroke.kernels.triton.few_rows import multiply_few
from twostroke.layers.gpu.operators import MAX_FEW_ROWS
from twostroke.layers.linear import Linear, make_linear

# Outputs and inputs of an 8B model's products.
SHAPES = {"qkv": (6144, 4096), "output": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336)}
# Outputs of a program, inputs of a step, warps, steps in flight, and whether kernels overlap.
TILES = [
    (32, 256, 4, 4, False), (32, 256, 4, 4, True), (64, 128, 4, 5, True), (64, 256, 4, 3, True),
    (32, 128, 4, 6, True), (32, 512, 4, 3, True), (64, 64, 4, 8, True), (128, 64, 4, 6, True),
    (128, 128, 8, 4, True), (32, 256, 8, 4, True),
]  # fmt: skip


def by_tile(
    tile: tuple[int, int, int, int, bool], x: torch.Tensor, weights: list[torch.Tensor]
) -> None:
    own, step, warps, stages, overlaps = tile
    rows, inputs = x.shape
    out = torch.empty(rows, len(weights[0]), device="cuda", dtype=torch.bfloat16)
    for weight in weights:
        multiply_few[triton.cdiv(len(weight), own), triton.cdiv(rows, 16)](
            x, weight, None, None, out, rows, len(weight), x.stride(0), inputs, 16, own, step,
            False, False, tl.bfloat16, overlaps,
            num_warps=warps, num_stages=stages, launch_pdl=overlaps,
        )  # fmt: skip


def by_cublas(x: torch.Tensor, weights: list[torch.Tensor]) -> None:
    for weight in weights:
        F.linear(x, weight)


def by_quantized(x: torch.Tensor, layers: list[Linear]) -> None:
    for layer in layers:
        layer(x)


def quantized_layers(weights: list[torch.Tensor]) -> dict[str, list[Linear]]:
    """The layers that ``--quantization`` makes of these weights."""
    return {to: [make_linear(own, None, to, None) for own in weights] for to in ("int8", "int4")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 65, 512])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    record = Record(args.results, "products", "cuda")
    for name, (outputs, inputs) in SHAPES.items():
        # Several weights in turn: together they do not stay in the cache.
        weights = [
            torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
            for _ in range(max(2, 2**29 // (outputs * inputs * 2)))
        ]
        rounded = quantized_layers(weights)
        for count in args.rows:
            x = torch.randn(count, inputs, device="cuda", dtype=torch.bfloat16)

            found = {"cublas": partial(by_cublas, x, weights)} | {
                to: partial(by_quantized, x, layers) for to, layers in rounded.items()
            }
            if count <= MAX_FEW_ROWS:
                found |= {str(tile): partial(by_tile, tile, x, weights) for tile in TILES}
            for how, run in found.items():
                try:
                    run()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        run()
                    ms = triton.testing.do_bench(graph.replay, warmup=5, rep=40)
                except Exception as error:  # too much shared memory, say
                    print(name, count, how, repr(error)[:100])
                    continue
                each = ms / 1e3 / len(weights)
                row = {"product": name, "rows": count, "how": how, "us": 1e6 * each}
                size = rounded[how][0].nbytes if how in rounded else weights[0].nbytes
                row["tb_per_s"] = size / each / 1e12
                record.add(row)


if __name__ == "__main__":
    main()
