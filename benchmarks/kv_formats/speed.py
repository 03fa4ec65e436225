"""How long decode attention takes in each format of the KV cache.

    python -m benchmarks.kv_formats.speed

8 requests of 8,000 tokens, layers of the 350m checkpoint (16 heads on 8 KV heads of 64), in turn
within each round; ratios are of the same round. Writes results/speed.json and .md.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from pathlib import Path

import cyclopts
import numpy as np
import torch

from benchmarks.environment import OtherPrograms, environment, environment_text
from twostroke.core.config import KVCacheDtype
from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import Attention, AttentionMetadata
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.kv_layout import make_layout

RESULTS = Path(__file__).parent / "results"
FORMATS: tuple[KVCacheDtype, ...] = ("bfloat16", "int8", "int4")
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 64, 16


def main(
    *,
    requests: int = 8,
    context: int = 8000,
    layers: int = 2,
    rounds: int = 15,
    threads: int | None = None,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        requests: That decode together.
        context: Tokens of each.
        layers: How many are run in turn: together larger than the processor's cache.
        rounds: Of all formats.
        threads: By default as many as PyTorch takes.
    """
    library = load_library()
    if library is None:
        raise SystemExit(
            "error: the compiled kernels are not there\n\nhint: python hatch_build.py says why"
        )
    torch.set_num_threads(threads or torch.get_num_threads())
    library.set_num_threads(torch.get_num_threads())
    other_programs = OtherPrograms()
    steps = {name: prepare(name, requests, context, layers) for name in FORMATS}
    query = torch.randn(requests, HEADS, HEAD_DIM).bfloat16()
    new = torch.randn(requests, KV_HEADS, HEAD_DIM).bfloat16()
    seconds: dict[str, list[float]] = {name: [] for name in FORMATS}
    for number in range(rounds + 1):
        for name, attention in steps.items():
            began = time.perf_counter()
            for layer in range(layers):
                attention(layer, query, new, new)
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - began) / layers)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.kv_formats.speed", *sys.argv[1:]]),
        other_programs.share(),
    )
    lines: list[str] = [
        "# Decode attention by format of the KV cache",
        "",
        environment_text(where),
        f"- instruction set: {library.instruction_set}",
        "",
        "| cache | ms a layer | of bfloat16's time, median of rounds | range | fastest rounds |",
        "|---|---:|---:|---:|---:|",
    ]
    for format_, each in seconds.items():
        ratios = [a / b for a, b in zip(each, seconds["bfloat16"], strict=True)]
        lines.append(
            f"| {format_} | {statistics.median(each) * 1e3:.2f} | {statistics.median(ratios):.2f} |"
            f" {min(ratios):.2f} to {max(ratios):.2f} |"
            f" {min(each) / min(seconds['bfloat16']):.2f} |"
        )
    lines += [
        "",
        f"{requests} requests at {context:,} tokens, {HEADS} heads on {KV_HEADS} KV heads of"
        f" {HEAD_DIM}, {rounds} rounds.",
    ]
    out.mkdir(parents=True, exist_ok=True)
    record = {"environment": where, "instruction_set": library.instruction_set, "seconds": seconds}
    (out / "speed.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def prepare(name: KVCacheDtype, requests: int, context: int, layers: int) -> Attention:
    """A step that decodes one token of each request, over random blocks in random order."""
    library = load_library()
    assert library is not None
    layout = make_layout(name, torch.bfloat16, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    per_request = -(-context // BLOCK_SIZE)
    count = requests * per_request
    first = torch.zeros(count, *layout.block_shape, dtype=layout.dtype)
    rows = torch.randn(count * BLOCK_SIZE, KV_HEADS, HEAD_DIM).bfloat16()
    layout.write(first, torch.arange(count * BLOCK_SIZE), rows)
    keys, values = ([first.clone() for _ in range(layers)] for _ in range(2))
    table = np.random.default_rng(0).permutation(count).reshape(requests, -1).astype(np.int32)
    last = context - 1
    slots = table[:, last // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + last % BLOCK_SIZE
    metadata = AttentionMetadata(
        np.arange(requests + 1), np.full(requests, context), table, torch.from_numpy(slots)
    )
    windows: list[int | None] = [None] * layers
    return CompiledBackend(keys, values, HEADS, windows, library, layout).prepare(metadata)


if __name__ == "__main__":
    cyclopts.run(main)
