"""How long decode attention takes in each format of the KV cache.

    python -m benchmarks.kv_formats.speed

1, 4 and 16 requests of 2,000 and 8,000 tokens, layers of the 350m checkpoint (16 heads on 8 KV
heads of 64), formats in turn within each round; ratios are of the same round. fp8 is measured by
PyTorch's operators too: without the kernel every step took that. Writes results/speed.json and .md.
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
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.kernels.library import Library, load_library
from twostroke.layers.attention.base import Attention, AttentionMetadata
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import make_layout

RESULTS = Path(__file__).parent / "results"
FORMATS: dict[str, KVCacheDtype] = {
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int4",
    "fp8": "fp8",
    "fp8, PyTorch": "fp8",
}
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 64, 16
PYTORCH_ROUNDS = 2  # each takes longer than all others together
Seconds = dict[str, list[float]]  # of a layer, by format, in order of the rounds


def main(
    *,
    requests: tuple[int, ...] = (1, 4, 16),
    contexts: tuple[int, ...] = (2000, 8000),
    layers: int = 2,
    rounds: int = 15,
    threads: int | None = None,
    instruction_set: str | None = None,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        requests: How many decode together, one table each.
        contexts: Tokens of each, one table each.
        layers: How many are run in turn: together larger than the processor's cache.
        rounds: Of all formats.
        threads: By default as many as PyTorch takes.
        instruction_set: Another build of the kernels than the best.
    """
    library = load_library()
    if library is None:
        raise SystemExit(
            "error: the compiled kernels are not there\n\nhint: python hatch_build.py says why"
        )
    if instruction_set is not None and not library.select(instruction_set):
        raise SystemExit(f"error: this processor does not run {instruction_set}")
    torch.set_num_threads(threads or torch.get_num_threads())
    library.set_num_threads(torch.get_num_threads())
    other_programs = OtherPrograms()
    seconds = {
        (count, context): measure(library, count, context, layers, rounds)
        for context in contexts
        for count in requests
    }
    where = environment(
        shlex.join(["python", "-m", "benchmarks.kv_formats.speed", *sys.argv[1:]]),
        other_programs.share(),
    )
    lines = [
        "# Decode attention by format of the KV cache",
        "",
        environment_text(where),
        f"- instruction set: {library.instruction_set}",
        f"- {HEADS} heads on {KV_HEADS} KV heads of {HEAD_DIM}, {rounds} rounds",
    ]
    for (count, context), by_format in seconds.items():
        lines += ["", *table(count, context, by_format)]
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "environment": where,
        "instruction_set": library.instruction_set,
        "seconds": {f"{count} x {context}": each for (count, context), each in seconds.items()},
    }
    (out / "speed.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure(library: Library, requests: int, context: int, layers: int, rounds: int) -> Seconds:
    """All formats in turn; the first round warms up."""
    steps = {name: prepare(library, name, requests, context, layers) for name in FORMATS}
    query = torch.randn(requests, HEADS, HEAD_DIM).bfloat16()
    new = torch.randn(requests, KV_HEADS, HEAD_DIM).bfloat16()
    seconds: Seconds = {name: [] for name in FORMATS}
    for number in range(rounds + 1):
        for name, attention in steps.items():
            if name == "fp8, PyTorch" and number > PYTORCH_ROUNDS:
                continue
            began = time.perf_counter()
            for layer in range(layers):
                attention(layer, query, new, new)
            if number:
                seconds[name].append((time.perf_counter() - began) / layers)
    return seconds


def table(requests: int, context: int, seconds: Seconds) -> list[str]:
    """One number of requests and one context."""
    lines = [
        f"## {requests} of {context:,} tokens",
        "",
        "| cache | ms a layer | of bfloat16's time, median of rounds | range | of int8's |",
        "|---|---:|---:|---:|---:|",
    ]
    for format_, each in seconds.items():
        plain, int8 = (
            [a / b for a, b in zip(each, seconds[other], strict=False)]
            for other in ("bfloat16", "int8")
        )
        lines.append(
            f"| {format_} | {statistics.median(each) * 1e3:.2f} | {statistics.median(plain):.2f} |"
            f" {min(plain):.2f} to {max(plain):.2f} | {statistics.median(int8):.2f} |"
        )
    return lines


def prepare(library: Library, name: str, requests: int, context: int, layers: int) -> Attention:
    """A step that decodes one token of each request, over random blocks in random order."""
    layout = make_layout(FORMATS[name], torch.bfloat16, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
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
    if name == "fp8, PyTorch":
        return SdpaBackend(keys, values, HEADS, windows, layout).prepare(metadata)
    return CompiledBackend(keys, values, HEADS, windows, library, layout).prepare(metadata)


if __name__ == "__main__":
    cyclopts.run(main)
