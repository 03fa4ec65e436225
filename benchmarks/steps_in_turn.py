"""Steps of two trees in turn; OTHER is the ``src`` of a checkout.

    python -m benchmarks.steps_in_turn MODEL OTHER

Each tree's engine runs in a process of its own; each step of one is followed by the same step of
the other, and ratios are taken within such a pair. On a machine whose memory gives half as much a
second later, rounds of whole requests (``benchmarks.hot_path``) need a difference of a tenth to
show it; this tells 2 %. For models larger than a cache: a small one's steps take twice as long
here, since its weights are gone whenever its turn comes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import cyclopts

ROOT = Path(__file__).resolve().parents[1]
THIS = ROOT / "src"
Step = tuple[float, bool, list[list[int]]]


def main(
    model: str,
    other: Path,
    *,
    quantization: str | None = None,
    batches: tuple[int, ...] = (1, 4, 16),
    input_len: int = 256,
    output_len: int = 64,
    rounds: int = 6,
) -> None:
    """Print the median ratio of this tree's steps to the other's, of prefill and decode steps.

    Args:
        model: A folder or an embedded model.
        other: The ``src`` folder of the tree to compare with, its kernels compiled.
        quantization: int8 or int4.
        batches: Requests at once.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer, two or more.
        rounds: Batches of each size, two or more; the first is not counted.
    """
    if rounds < 2 or output_len < 2:
        raise SystemExit("error: --rounds and --output-len must be 2 or more")
    engines = [_Engine(source.resolve(), model, quantization) for source in (other, THIS)]
    draw = random.Random(0)
    print(
        f"{'requests':>8} {'step':8} {'other, ms':>10} {'this, ms':>10} {'ratio':>7}  pairs  same"
        " tokens"
    )
    try:
        for batch in batches:
            prefills: list[tuple[Step, Step]] = []
            decodes: list[tuple[Step, Step]] = []
            for number in range(rounds):
                prompts = [[draw.randrange(3, 250) for _ in range(input_len)] for _ in range(batch)]
                pairs = _round(engines, {"prompts": prompts, "output_len": output_len})
                if number:
                    prefills += pairs[:1]
                    decodes += pairs[1:]
            for name, pairs in (("prefill", prefills), ("decode", decodes)):
                print(f"{batch:>8} {name:8} {summary_line(pairs)}", flush=True)
    finally:
        for engine in engines:
            engine.end()


def _round(engines: list[_Engine], work: dict[str, Any]) -> list[tuple[Step, Step]]:
    for engine in engines:
        engine.ask(work)
    pairs: list[tuple[Step, Step]] = []
    while not pairs or pairs[-1][0][1]:
        turn = len(pairs) % 2  # who goes first
        answers = {index: engines[index].ask({}) for index in (turn, 1 - turn)}
        pairs.append((answers[0], answers[1]))
    return pairs


def summary_line(pairs: list[tuple[Step, Step]]) -> str:
    """Median ms of the other tree and of this one, their ratio, pairs, and how many are equal."""
    other, this = (1e3 * statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(pair[1][0] / pair[0][0] for pair in pairs)
    same = sum(pair[0][2] == pair[1][2] for pair in pairs) / len(pairs)
    return f"{other:>10.2f} {this:>10.2f} {ratio:>7.3f} {len(pairs):>6}  {same:.0%}"


class _Engine:
    """A tree's engine in its process, which answers a line of JSON with another."""

    def __init__(self, source: Path, model: str, quantization: str | None) -> None:
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--worker",
            model,
            quantization or "",
        ]
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def ask(self, work: dict[str, Any]) -> Step:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Step:
        assert self._process.stdout is not None
        seconds, more, tokens = (
            json.loads(self._process.stdout.readline() or "null") or self._fail()
        )
        return seconds, more, tokens

    def _fail(self) -> Step:
        raise SystemExit(
            f"error: a worker ended with {self._process.wait()}; its message stands above"
        )

    def end(self) -> None:
        with self._process:  # closes its pipes, upon which it ends
            pass


def worker(model: str, quantization: str | None) -> None:
    """Load a model, then take a batch, or a step, for each line."""
    # Older trees define these elsewhere, but this module has them in all.
    llm: Any = import_module("twostroke.llm")
    engine = llm.LLM(
        model, quantization=quantization, kv_cache_memory=2**30, max_num_seqs=64
    ).engine

    def say(seconds: float, tokens: list[list[int]]) -> None:
        print(json.dumps([seconds, engine.has_work(), tokens]), flush=True)

    say(0.0, [])
    for number, line in enumerate(sys.stdin):
        work = json.loads(line)
        began, outputs = time.perf_counter(), []
        if work:
            params = llm.SamplingParams(
                temperature=0, max_tokens=work["output_len"], ignore_eos=True
            )
            for index, prompt in enumerate(work["prompts"]):
                engine.submit(
                    llm.GenerationRequest(
                        request_id=f"{number}-{index}", prompt_token_ids=prompt, params=params
                    )
                )
        else:
            outputs = engine.step()
        say(time.perf_counter() - began, [output.token_ids for output in outputs])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3] or None)
    else:
        cyclopts.run(main)
