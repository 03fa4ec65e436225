"""Decoding behind long contexts beside llama.cpp, with the same formats of the KV cache.

    python benchmarks/make_checkpoint.py 10m /tmp/10m
    python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python==0.3.36 gguf==0.18.0
    python -m benchmarks.kv_formats.llama_cpp /tmp/10m --python /tmp/llama/bin/python

8 requests of 8,000 tokens on the small model, whose weights are a twentieth of the KV cache that a
step reads: so a step is attention above all. All engines are loaded at once, rounds in turn; the
first round is not counted. Writes llama_cpp.json and .md into ``results``.
"""

from __future__ import annotations

import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.peers.systems import ROOT, Round, System, running

RESULTS = Path(__file__).parent / "results"
PAUSE = 0.5  # seconds before each round: threads of the one before spin on for up to 0.2
# twostroke's name of each format, and llama.cpp's of that with as many bits.
FORMATS = {"bfloat16": "bf16", "int8": "q8_0", "int4": "q4_0"}


def main(
    model: Path,
    *,
    python: str,
    requests: int = 8,
    context: int = 8000,
    output_len: int = 32,
    rounds: int = 3,
    threads: int = 2,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: A folder of a Llama checkpoint.
        python: Of the environment with llama-cpp-python and gguf.
        requests: That decode together.
        context: Tokens of each prompt.
        output_len: Tokens of each answer.
        rounds: How often each is measured; medians are reported.
        out: Folder for the record.
    """
    draw = random.Random(0)
    prompts = [[draw.randrange(8, 8000) for _ in range(context)] for _ in range(requests)]
    others = OtherPrograms()
    done: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory(prefix="twostroke-kv-") as folder:
        systems = _systems(model, python, Path(folder), threads, requests, context + output_len)
        with running(systems, Path(folder)) as workers:
            versions = sorted({f"{w.about['name']} {w.about['version']}" for w in workers})
            for number in range(rounds + 1):
                turn = number % len(workers)
                for worker in workers[turn:] + workers[:turn]:
                    time.sleep(PAUSE)
                    one = worker.run(prompts, output_len)
                    if number:
                        done.setdefault(worker.system.name, []).append(one)
                print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    command = shlex.join(["python", "-m", __spec__.name, *sys.argv[1:]])
    where = environment(command, others.share())
    text = (
        f"{environment_text(where)}- {', '.join(versions)}\n- {requests} requests of {context}"
        f" tokens, {output_len} decoded; medians of {rounds} rounds in turn\n\n"
    ) + "\n".join(_table(done))
    seconds = {name: [_step(one) for one in each] for name, each in done.items()}
    record = {"environment": where, "versions": versions, "step_seconds": seconds}
    write_record(out / "llama_cpp", "Formats of the KV cache beside llama.cpp", text, record)
    print(text)


def _systems(
    model: Path, python: str, folder: Path, threads: int, requests: int, tokens: int
) -> list[System]:
    target = folder / "gguf"
    converter = [python, "-m", "benchmarks.peers.workers.gguf_convert", str(model), str(target)]
    subprocess.run([*converter, "--only-bf16"], check=True, cwd=ROOT)
    room = -(-tokens // 256) * 256
    systems = []
    for own, theirs in FORMATS.items():
        common = ("--threads", str(threads))
        arguments = ("--model", str(model), *common, "--kv-cache-dtype", own)
        arguments_here = (*arguments, "--max-model-len", str(room))
        name, worker = f"twostroke {own}", "twostroke_worker"
        systems.append(System(name, "bf16", sys.executable, worker, arguments_here))
        peer = ("--model", str(target / "bf16.gguf"), *common, "--kv-type", theirs)
        arguments_there = (*peer, "--sequences", str(requests), "--tokens", str(room))
        name, worker = f"llama.cpp {theirs}", "llama_cpp_worker"
        systems.append(System(name, "bf16", python, worker, arguments_there))
    return systems


def _table(done: dict[str, list[Round]]) -> list[str]:
    rows = [
        "| system | step, ms | of its own bf16 | llama.cpp's step over twostroke's |",
        "|---|---:|---:|---:|",
    ]
    steps = {name: [_step(one) for one in each] for name, each in done.items()}
    for own, theirs in FORMATS.items():
        ahead = statistics.median(
            b / a for a, b in zip(steps[f"twostroke {own}"], steps[f"llama.cpp {theirs}"])
        )
        for system, kind, plain in (("twostroke", own, "bfloat16"), ("llama.cpp", theirs, "bf16")):
            name = f"{system} {kind}"
            ratio = statistics.median(
                a / b for a, b in zip(steps[name], steps[f"{system} {plain}"])
            )
            shown = f"{ahead:.2f}x" if system == "twostroke" else ""
            rows.append(
                f"| {name} | {1e3 * statistics.median(steps[name]):.1f} | {ratio:.2f} | {shown} |"
            )
    return rows


def _step(one: Round) -> float:
    """Median seconds of a step in which all requests decode.

    twostroke finds the prompts of the round before in its cache; llama.cpp reads them anew.
    """
    start = max(times[0] for times in one.times)
    ends = [time for time in one.times[0] if time >= start]
    assert len(ends) > 2, "answers are too short: prompts are read until they end"
    return statistics.median(b - a for a, b in pairwise(ends))


if __name__ == "__main__":
    cyclopts.run(main)
