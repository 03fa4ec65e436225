"""Which tiles suit attention: microseconds of one layer of an 8B model, and how much that is.

    python -m benchmarks.gpu.attention

Prompts are counted in FLOP/s of the two products under the diagonal, single tokens in bytes of
keys and values that are read.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu.environment import Record
from tests.layers.gpu.test_paged_attention import Shape, Step
from twostroke.layers.attention.base import ScoreForm
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.gpu.paged_attention import PagedBackend
from twostroke.layers.gpu.tiles import TileShape

BF16 = torch.bfloat16
SHAPE = Shape(32, 8, 128, 128, dtype=BF16, cache=BF16)
MANY = [
    TileShape(128, 64, 8, 2), TileShape(128, 64, 8, 3), TileShape(128, 128, 8, 2),
    TileShape(128, 128, 8, 3), TileShape(64, 64, 4, 2), TileShape(64, 64, 4, 3),
    TileShape(64, 128, 4, 2), TileShape(128, 32, 8, 3), TileShape(256, 64, 8, 2),
]  # fmt: skip
FEW = [
    TileShape(16, 64, 4, 3), TileShape(16, 64, 4, 2), TileShape(16, 32, 4, 3),
    TileShape(16, 64, 2, 3), TileShape(16, 128, 4, 2), TileShape(16, 32, 2, 4),
    TileShape(16, 64, 8, 3),
]  # fmt: skip
PROMPT = 8192
DECODE = [(1, 280), (64, 280), (64, 2048), (1, 8192)]


def attending(
    requests: list[tuple[int, int]], few: TileShape | None = None, many: TileShape | None = None
) -> Any:
    """A call of one layer, without writing keys and values."""
    device = torch.device("cuda", 0)
    operators = load_operators(device)
    assert operators is not None
    step = Step(SHAPE, requests, device)
    backend = PagedBackend(
        [step.keys],
        [step.values],
        32,
        [None],
        operators,
        step.key_layout,
        step.value_layout,
        ScoreForm(128**-0.5),
    )
    backend.few, backend.many = few or backend.few, many or backend.many
    return partial(backend.prepare(step.metadata), 0, step.query)


def microseconds(run: Any) -> float:
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            run()
    return float(1e3 * triton.testing.do_bench(graph.replay, warmup=5, rep=30) / 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    record = Record(args.results, "attention", "cuda")

    def measure(name: str, shape: TileShape, run: Any, amount: float, unit: str) -> None:
        try:
            us = microseconds(run())
        except Exception as error:  # too much shared memory, say
            print(name, tuple(shape), repr(error)[:80])
            return
        record.add({"case": name, "shape": tuple(shape), "us": us, unit: amount / us / 1e6})

    flops = 4 * PROMPT**2 / 2 * 32 * 128
    for shape in MANY:
        run = partial(attending, [(PROMPT, PROMPT)], many=shape)
        measure("prompt", shape, run, flops, "TFLOP/s")
    for batch, context in DECODE:
        read = batch * context * 2 * 8 * 128 * 2
        for shape in FEW:
            run = partial(attending, [(1, context)] * batch, few=shape)
            measure(f"{batch} x {context}", shape, run, read, "TB/s")


if __name__ == "__main__":
    main()
