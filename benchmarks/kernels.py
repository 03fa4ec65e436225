"""How near the compiled CPU kernels come to the machine's ceilings.

    python -m benchmarks.kernels

Linear layers go through enough matrices that every one comes from memory, for each format and
number of rows, against PyTorch's `F.linear` in the same run; attention reads a cache larger than
the processor's. Medians of several rounds. Writes benchmarks/results/kernels.json and .md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.environment import OtherPrograms, environment, environment_text
from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import Attention, AttentionBackend, AttentionMetadata
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.linear import PackedLinear
from twostroke.layers.packing import pack

RESULTS = Path(__file__).parent / "results"
SIZE, MATRICES = 2048, 60
ROWS = (1, 4, 16, 64, 256)


def median_seconds(run: Callable[[], object], rounds: int) -> float:
    """Median of some rounds, after one that is not counted."""
    run()
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def _all_torch(weights: list[Tensor], x: Tensor) -> None:
    for weight in weights:
        F.linear(x, weight)


def _all_packed(layers: list[PackedLinear], x: Tensor) -> None:
    for layer in layers:
        layer(x)


def _all_layers(attention: Attention, layers: int, query: Tensor, new: Tensor) -> None:
    for layer in range(layers):
        attention(layer, query, new, new)


def measure_linear(rounds: int) -> list[dict[str, float | str]]:
    """By format and rows: ms for all matrices, GB/s of weights, GFLOP/s."""
    library = load_library()
    if library is None:
        raise SystemExit(
            "error: the compiled kernels are not there\n\nhint: python hatch_build.py says why"
        )
    measured: list[dict[str, float | str]] = []
    weights = [torch.randn(SIZE, SIZE).bfloat16() for _ in range(MATRICES)]
    inputs = {rows: torch.randn(rows, SIZE).bfloat16() for rows in ROWS}

    def add(name: str, rows: int, size: int, seconds: float) -> None:
        rates = {
            "gb_per_s": size / seconds / 1e9,
            "gflop_per_s": 2 * rows * SIZE * SIZE * MATRICES / seconds / 1e9,
        }
        measured.append({"layer": name, "rows": rows, "ms": seconds * 1e3, **rates})
        print(f"{name:16} {rows:4} rows {seconds * 1e3:8.1f} ms {rates['gb_per_s']:6.1f} GB/s"
              f" {rates['gflop_per_s']:6.0f} GFLOP/s", flush=True)  # fmt: skip

    for rows, x in inputs.items():
        add(
            "F.linear",
            rows,
            2 * SIZE * SIZE * MATRICES,
            median_seconds(partial(_all_torch, weights, x), rounds),
        )
    for format in ("bfloat16", "int8", "int4"):
        layers = [PackedLinear(pack(weight, format), None, library) for weight in weights]
        size = sum(layer.nbytes for layer in layers)
        for rows, x in inputs.items():
            add(
                f"packed {format}",
                rows,
                size,
                median_seconds(partial(_all_packed, layers, x), rounds),
            )
    return measured


def measure_attention(rounds: int) -> list[dict[str, float | str]]:
    """16 requests of 300 tokens decode, as in the 350m model: 24 layers of 8 KV heads of 64."""
    library, requests, context, layers = load_library(), 16, 300, 24
    assert library is not None
    per_request = -(-context // 16)
    caches = [
        [torch.randn(requests * per_request, 16, 8, 64).bfloat16() for _ in range(layers)]
        for _ in range(2)
    ]
    table = (
        np.random.default_rng(0)
        .permutation(requests * per_request)
        .reshape(requests, -1)
        .astype(np.int32)
    )
    slots = torch.from_numpy(
        table[:, (context - 1) // 16].astype(np.int64) * 16 + (context - 1) % 16
    )
    metadata = AttentionMetadata(np.arange(requests + 1), np.full(requests, context), table, slots)
    query, new = torch.randn(requests, 16, 64).bfloat16(), torch.randn(requests, 8, 64).bfloat16()
    size = 2 * layers * requests * context * 8 * 64 * 2
    rows: list[dict[str, float | str]] = []
    windows: list[int | None] = [None] * layers
    backends: dict[str, AttentionBackend] = {
        "SDPA, gathered": SdpaBackend(caches[0], caches[1], 16, windows),
        "compiled, paged": CompiledBackend(caches[0], caches[1], 16, windows, library),
    }
    for name, backend in backends.items():
        attention = backend.prepare(metadata)
        seconds = median_seconds(partial(_all_layers, attention, layers, query, new), rounds)
        rows.append(
            {"layer": name, "rows": requests, "ms": seconds * 1e3, "gb_per_s": size / seconds / 1e9}
        )
        print(
            f"{name:16} {requests:4} requests {seconds * 1e3:6.1f} ms {size / seconds / 1e9:6.1f}"
            " GB/s",
            flush=True,
        )
    return rows


def main() -> None:
    """Measures and records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    library = load_library()
    if library is not None:
        library.set_num_threads(args.threads)
        print(f"instruction set {library.instruction_set}, {args.threads} threads")
    other_programs = OtherPrograms()
    rows = measure_linear(args.rounds) + measure_attention(args.rounds)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.kernels", *sys.argv[1:]]), other_programs.share()
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kernels.json").write_text(
        json.dumps({"environment": where, "rows": rows}, indent=1) + "\n"
    )
    lines = [
        "# CPU kernels",
        "",
        environment_text(where),
        "",
        "| layer | rows | ms | GB/s | GFLOP/s |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        flops = f"{row['gflop_per_s']:.0f}" if "gflop_per_s" in row else ""
        lines.append(
            f"| {row['layer']} | {row['rows']} | {row['ms']:.1f} | {row['gb_per_s']:.1f} |"
            f" {flops} |"
        )
    lines += [
        "",
        (
            f"Linear: {MATRICES} matrices of {SIZE} x {SIZE}, so that weights come from memory."
            " Attention: one step's of"
        ),
        (
            "16 requests at 300 tokens, 24 layers, 16 heads on 8 KV heads of 64; bytes are those"
            " of\nkeys and values."
        ),
    ]
    (RESULTS / "kernels.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
