"""A decode step of an expert model at batch 1 against the time that its active bytes take.

    python -m benchmarks.layer_kinds.experts MODEL

MODEL is a folder, such as `benchmarks/make_checkpoint.py qwen3-moe-300m` writes. Steps and readings
of as many bytes take turns, and ratios are taken within such a pair: a machine whose memory gives
half as much a second later bounds both alike. A reading is the compiled linear layer's at one row,
from matrices that no cache holds: nothing here reads memory faster.
"""

from __future__ import annotations

import statistics
import time

import cyclopts
import torch
from torch import Tensor

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.kernels.library import load_library
from twostroke.layers.linear import PackedLinear
from twostroke.layers.packing import pack
from twostroke.llm import LLM
from twostroke.model_spec.spec import ModelSpec

SIZE = 1024  # of a reading's matrices, 2 MiB each


def active_bytes(spec: ModelSpec) -> int:
    """Bytes of weights that one token reads, in bfloat16; of the embedding it reads a row."""
    layers = sum(layer.count * layer.active_parameters for layer in spec.layers)
    return 2 * (layers + spec.hidden_size * spec.vocab_size)


class Reading:
    """Reads a number of bytes of weights, others each time."""

    def __init__(self, size: int) -> None:
        library = load_library()
        if library is None:
            raise SystemExit("error: the compiled kernels are not there")
        self._count = round(size / (2 * SIZE * SIZE))
        kept = max(self._count, 2**29 // (2 * SIZE * SIZE))
        weight = torch.randn(SIZE, SIZE).bfloat16()
        self._linears = [PackedLinear(pack(weight, "bfloat16"), None, library) for _ in range(kept)]
        self._x: Tensor = torch.randn(1, SIZE).bfloat16()
        self._next = 0

    def __call__(self) -> None:
        for _ in range(self._count):
            self._linears[self._next](self._x)
            self._next = (self._next + 1) % len(self._linears)


def main(model: str, *, input_len: int = 128, output_len: int = 128, rounds: int = 4) -> None:
    """Print the median ratio, and its quarters.

    Args:
        model: A folder.
        input_len: Tokens of the prompt.
        output_len: Tokens of the answer.
        rounds: Answers; the first is not counted.
    """
    engine = LLM(model, kv_cache_memory=2**28, max_num_seqs=4).engine
    executor = engine.executor
    spec: ModelSpec = executor.model.spec  # type: ignore[attr-defined]
    size = active_bytes(spec)
    reading = Reading(size)
    steps, reads = [], []
    for number in range(rounds):
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        prompt = [3 + (7 * i + number) % 200 for i in range(input_len)]
        engine.submit(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        )
        engine.step()  # the prompt
        while engine.has_work():
            seconds = []
            for run in (engine.step, reading):
                began = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - began)
            if number:
                steps.append(seconds[0])
                reads.append(seconds[1])
    ratios = [step / read for step, read in zip(steps, reads, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    rate = size / statistics.median(reads) / 1e9
    print(
        f"{size / 1e6:.0f} MB active, read at {rate:.1f} GB/s; a step takes"
        f" {1e3 * statistics.median(steps):.2f} ms, {middle:.3f} times the reading"
        f" ({low:.3f} to {high:.3f}), {len(ratios)} pairs"
    )


if __name__ == "__main__":
    cyclopts.run(main)
