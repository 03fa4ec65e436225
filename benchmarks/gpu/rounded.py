"""Products in 8 and 4 bits: fp8 by ``scaled_mm``, int8, int4 and fp8 experts in one kernel.

    python -m benchmarks.gpu.rounded

Beside bfloat16, in microseconds: a layer of an 8B model, and 128 experts of which each token takes
eight (30B-A3B).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu.environment import Record
from twostroke.layers.gpu.experts import GpuExperts
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.linear import make_linear

PRODUCTS = {"qkv": (6144, 4096), "up": (28672, 4096), "down": (4096, 14336)}
ROWS = [1, 16, 64, 256, 2048, 8192]
HIDDEN, SIZE, EXPERTS, PER_TOKEN = 2048, 768, 128, 8
FORMATS = [None, "fp8", "int8", "int4"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    operators = load_operators(torch.device("cuda", 0))
    assert operators is not None, "no Triton, or no GPU that it runs on"
    make: Any = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    record = Record(args.results, "rounded", "cuda")

    def measure(case: str, count: int, outs: dict[str, Any]) -> None:
        exact, row = outs["None"]().float(), dict[str, Any](case=case, rows=count)
        for name, run in outs.items():
            row[f"{name}_us"] = 1e3 * triton.testing.do_bench(run, warmup=5, rep=30)
            row[f"{name}_error"] = float((run().float() - exact).norm() / exact.norm())
        record.add(row)

    for name, (outputs, inputs) in PRODUCTS.items():
        weight = make(outputs, inputs) * inputs**-0.5
        layers = {str(each): make_linear(weight, None, each, None) for each in FORMATS}
        for count in ROWS:
            x = make(count, inputs)
            measure(name, count, {key: partial(own, x) for key, own in layers.items()})
    experts = {}
    for each in FORMATS:
        torch.manual_seed(0)
        pairs = [
            (
                make_linear(make(2 * SIZE, HIDDEN) * HIDDEN**-0.5, None, each, None),
                make_linear(make(HIDDEN, SIZE) * SIZE**-0.5, None, each, None),
            )
            for _ in range(EXPERTS)
        ]
        experts[str(each)] = GpuExperts(
            GpuExperts.take(pairs),
            lambda x: operators.gated_mul(x, 0),
            operators,
            scales_inputs=False,
        )
    for count in ROWS[:-1]:
        x, weights = make(count, HIDDEN), torch.rand(count, PER_TOKEN, device="cuda")
        chosen = torch.rand(count, EXPERTS, device="cuda").argsort(-1)[:, :PER_TOKEN]
        calls = {key: partial(own, x, chosen, weights) for key, own in experts.items()}
        measure("experts", count, calls)
    limits = {"fp8": 0.06, "int8": 0.02, "int4": 0.2}
    if any(row[f"{key}_error"] > most for row in record.rows for key, most in limits.items()):
        raise SystemExit("a product in few bits is further off than its codes can be")


if __name__ == "__main__":
    main()
