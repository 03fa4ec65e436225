"""How long draws take: kernels without a sort, and PyTorch's operators, at several batches.

    python -m benchmarks.gpu.draws

Microseconds from logits to tokens on the host, of a vocabulary of 151,936, and whether both drew
the same tokens. On a CPU (``--device cpu``, with Triton's interpreter) times mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.environment import Record
from tests.sampling.helpers import make_request
from twostroke.layers.gpu.load import load_draws
from twostroke.sampling.sampler import Sampler

VOCAB = 151_936
CASES: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-p": {"top_p": 0.9},
    "top-k, top-p": {"top_k": 50, "top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5},
}


def microseconds(sampler: Sampler, logits: torch.Tensor, requests: Any, times: int) -> Any:
    taken, drawn = [], []
    for _ in range(times):
        own = logits.clone()
        if own.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        drawn = sampler.sample(own, requests).token_ids
        taken.append(1e6 * (time.perf_counter() - began))
    return statistics.median(taken), drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    device = torch.device(args.device)
    draws = load_draws(device)
    assert draws is not None, "no Triton, or no GPU that it runs on"
    record = Record(args.results, "draws", args.device)
    for batch in args.batches:
        # What a model gives: bfloat16, some tokens far above the others.
        logits = (torch.randn(batch, args.vocab, device=device) * 2).bfloat16().float()
        logits[:, :40] += 6
        for name, params in CASES.items():
            requests = [
                make_request(range(200), range(100), seed=row, **params) for row in range(batch)
            ]
            own = Sampler(args.vocab, device, draws=draws)
            plain = Sampler(args.vocab, device)
            kernels, tokens = microseconds(own, logits, requests, args.times)
            operators, others = microseconds(plain, logits, requests, args.times)
            row = {"case": name, "batch": batch, "us": kernels, "pytorch_us": operators}
            row["different"] = sum(a != b for a, b in zip(tokens, others, strict=True))
            record.add(row)
    # A weight may differ by 2**-22 of itself, so a token in some 100,000 draws.
    if sum(row["different"] for row in record.rows) > 1:
        raise SystemExit("kernels and PyTorch drew different tokens")


if __name__ == "__main__":
    main()
