"""How long attention over latents takes, of a layer of DeepSeek-V2-Lite and of V3.

    python -m benchmarks.gpu.latents

Beside PyTorch's attention over gathered latents: whether both agree, and how fast each is.
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
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.gpu.paged_attention import PagedBackend

BF16 = torch.bfloat16
LATENT, WIDTH = 512, 576
STEPS = [(1, 1, 2048), (64, 1, 2048), (1, 1, 32768), (1, 2048, 2048), (1, 512, 8192)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    operators = load_operators(device)
    assert operators is not None, "no Triton, or no GPU that it runs on"
    record = Record(args.results, "latents", "cuda")
    for heads in (16, 128):
        shape = Shape(heads, 1, WIDTH, latent=LATENT, dtype=BF16, cache=BF16)
        for requests, tokens, context in STEPS:
            step = Step(shape, [(tokens, context)] * requests, device)
            caches, form = ([step.keys], [step.keys], heads, [None]), step.form
            layout = step.key_layout
            own = PagedBackend(*caches, operators, layout, layout, form).prepare(step.metadata)
            plain = SdpaBackend(*caches, layout, layout, form).prepare(step.metadata)
            error = (own(0, step.query) - plain(0, step.query)).abs().max()
            row: dict[str, Any] = {"heads": heads, "requests": requests, "tokens": tokens}
            row |= {"context": context, "largest_difference": float(error)}
            for name, attention in (("us", own), ("pytorch_us", plain)):
                call = partial(attention, 0, step.query)
                row[name] = 1e3 * triton.testing.do_bench(call, warmup=5, rep=40)
            row["tb_per_s"] = requests * context * WIDTH * 2 / row["us"] / 1e6
            record.add(row)
    if any(row["largest_difference"] > 0.05 for row in record.rows):
        raise SystemExit("kernel and PyTorch differ")


if __name__ == "__main__":
    main()
