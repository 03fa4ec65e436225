"""What steps need beside weights and cache, as measured at start and as a full engine takes it.

    python -m benchmarks.gpu.memory

And how fast blocks go to the host and back through pinned memory, and whether they come back whole.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.environment import Record
from benchmarks.gpu.random_model import BLOCK_SIZE, CONFIGS, random_executor
from twostroke.core.config import EngineConfig
from twostroke.core.kv_groups import ONE_GROUP
from twostroke.runtime.block_bytes import BlockBytes
from twostroke.runtime.caches.largest_step import (
    blocks_of_largest,
    largest_shares,
    measured_peak,
    run_largest,
)
from twostroke.runtime.device import begin_peak, peak_memory


def copies(blocks: BlockBytes, tensors: list[torch.Tensor], count: int) -> dict[str, Any]:
    """Seconds of reading and of writing blocks, and whether they are what they were."""
    ids, others = list(range(count)), list(range(count, 2 * count))
    torch.cuda.synchronize()
    began = time.perf_counter()
    data = blocks.read(ids)
    read = time.perf_counter() - began
    began = time.perf_counter()
    blocks.write(others, data)
    torch.cuda.synchronize()
    written = time.perf_counter() - began
    amount = count * blocks.block_bytes / 1e9
    same = all(torch.equal(each[ids], each[others]) for each in tensors)
    return {"read_gb_per_s": amount / read, "write_gb_per_s": amount / written, "same": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="8b", choices=sorted(CONFIGS))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    device, length = torch.device(args.device, 0), 8192
    config = EngineConfig.from_flat({"model": "random", "max_model_len": length})
    num_blocks = blocks_of_largest(config, length, BLOCK_SIZE, ONE_GROUP, gpu=True)
    executor = random_executor(
        CONFIGS[args.size], device, max_model_len=length, num_blocks=max(num_blocks, 512)
    )
    kv, model = executor.kv, executor.model
    row: dict[str, Any] = {
        "steps": [len(each) for each in largest_shares(config, length, gpu=True)]
    }
    row["needed_bytes"] = measured_peak(kv, model, config, length)
    before = begin_peak(device)
    run_largest(kv, model, config, length)
    row["again_bytes"] = peak_memory(device) - before
    tensors = kv.block_tensors()
    for each in tensors:
        each.normal_()
    blocks = BlockBytes(tensors)
    copies(blocks, tensors, 64)
    row |= copies(blocks, tensors, 256)
    Record(args.results, "memory", args.device).add(row)
    if not row["same"] or row["again_bytes"] > row["needed_bytes"]:
        raise SystemExit("blocks came back otherwise, or steps took more than was measured")


if __name__ == "__main__":
    main()
