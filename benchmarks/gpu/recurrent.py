"""How long the gated delta rule of a layer takes, beside the bytes of its states.

    python -m benchmarks.gpu.recurrent

Prompts in chunks, and token after token as decoding and short prompts go.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton

from benchmarks.gpu.environment import Record
from twostroke.layers.gpu import gated_delta
from twostroke.layers.gpu.load import load_gated_delta
from twostroke.layers.recurrent_state import MANY_TOKENS, Segment
from twostroke.model_spec.recurrent_forms import DeltaForm
from twostroke.runtime.state_tensors import StepStates

# A layer of Qwen3-Next.
FORM = DeltaForm(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)
STEPS = [(1, 1), (8, 1), (64, 1), (256, 1), (1, 512), (1, 8192), (8, 512)]  # requests, tokens each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    make: Any = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    vectors = make(FORM.value_heads), make(FORM.value_heads), make(FORM.value_dim)
    delta = load_gated_delta(FORM, make(FORM.channels, FORM.kernel), *vectors, 1e-6)
    assert delta is not None, "no Triton, or no GPU that it runs on"
    record = Record(args.results, "recurrent", "cuda")
    for requests, tokens in STEPS:
        inputs = make(requests * tokens, FORM.channels + FORM.values)
        gates = torch.randn(len(inputs), 2 * FORM.value_heads, device="cuda")
        shape = (requests, FORM.value_heads, FORM.key_dim, FORM.value_dim)
        state = (
            torch.zeros(requests, FORM.kernel - 1, FORM.channels, device="cuda").bfloat16(),
            torch.zeros(shape, device="cuda"),
        )
        segments = [Segment(n * tokens, (n + 1) * tokens, (n,)) for n in range(requests)]
        states = StepStates([state], segments)
        ms = triton.testing.do_bench(partial(delta, inputs, gates, states, 0), warmup=5, rep=40)
        row = {"requests": requests, "tokens": tokens, "us": 1e3 * ms}
        row["tb_per_s"] = 2 * state[1].nbytes / ms / 1e9
        if tokens >= MANY_TOKENS:  # as if it were too few for chunks
            with patch.object(gated_delta, "MANY_TOKENS", 2**30):
                alone = StepStates([state], segments)
                alone.runs = states.runs._replace(chunks=states.runs.chunks[:0])
                run = partial(delta, inputs, gates, alone, 0)
                row["token_after_token_us"] = 1e3 * triton.testing.do_bench(run, warmup=1, rep=5)
        record.add(row)


if __name__ == "__main__":
    main()
