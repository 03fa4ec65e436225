"""What a schema costs, beside llama.cpp, in one run: free text and guided JSON of both.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python==0.3.36 gguf==0.18.0
    python -m benchmarks.structured_output.make_model /tmp/350m-128k
    python -m benchmarks.structured_output.llama_cpp /tmp/350m-128k --python /tmp/llama/bin/python

Greedy answers of a fixed number of tokens, all engines loaded at once, rounds in turn. Writes
guided_llama_cpp.json and .md into ``results``.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.peers.systems import ROOT, Round, System, running
from twostroke.text.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results"
PROMPT = "A list of people and their answers: "
PAUSE = 0.5  # seconds before each round: threads of the one before spin on for up to 0.2
# Sixteen short texts: far more tokens than are asked for, and neither side has to count far.
TEXT = {"type": "string", "minLength": 4, "maxLength": 12}
NAMES = [f"the answer to question number {number}" for number in range(16)]
SCHEMA = {
    "type": "object",
    "properties": dict.fromkeys(NAMES, TEXT),
    "required": NAMES,
    "additionalProperties": False,
}


def main(
    model: Path,
    *,
    python: str,
    requests: tuple[int, ...] = (1, 16),
    rounds: int = 5,
    output_len: int = 64,
    threads: int = 2,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: A folder that ``make_model`` wrote.
        python: Of the environment with llama-cpp-python and gguf.
        requests: At once.
        rounds: How often each is measured; medians are reported.
        output_len: Tokens of an answer.
        out: Folder for the record.
    """
    prompt = Tokenizer.from_folder(model).encode(PROMPT)
    others = OtherPrograms()
    done: dict[tuple[str, int], list[Round]] = {}
    with tempfile.TemporaryDirectory(prefix="twostroke-guided-") as folder:
        systems = _systems(model, python, Path(folder), threads)
        with running(systems, Path(folder)) as workers:
            versions = sorted({f"{w.about['name']} {w.about['version']}" for w in workers})
            for number in range(rounds + 1):
                for count in requests:
                    turn = number % len(workers)
                    for worker in workers[turn:] + workers[:turn]:
                        time.sleep(PAUSE)
                        one = worker.run([prompt] * count, output_len if number else 8)
                        if number:
                            done.setdefault((worker.system.name, count), []).append(one)
                print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    command = shlex.join(["python", "-m", __spec__.name, *sys.argv[1:]])
    where = environment(command, others.share())
    text = (
        f"{environment_text(where)}- {', '.join(versions)}\n- {output_len} tokens, greedy; medians"
        f" of {rounds} rounds in turn\n\n" + "\n".join(_table(done, requests))
    )
    tpots = {f"{name}, {n}": [_tpot(one) for one in each] for (name, n), each in done.items()}
    record = {"environment": where, "versions": versions, "tpot_seconds": tpots}
    write_record(out / "guided_llama_cpp", "Guided JSON beside llama.cpp", text, record)
    print(text)


def _systems(model: Path, python: str, folder: Path, threads: int) -> list[System]:
    target = folder / "gguf"
    converter = [python, "-m", "benchmarks.peers.workers.gguf_convert", str(model), str(target)]
    subprocess.run([*converter, "--only-bf16", "--vocabulary"], check=True, cwd=ROOT)
    own = ("--model", str(model), "--threads", str(threads))
    peer = ("--model", str(target / "bf16.gguf"), "--threads", str(threads))
    schema = ("--schema", json.dumps(SCHEMA))
    return [
        System("twostroke", "bf16", sys.executable, "twostroke_worker", own),
        System("twostroke, guided", "bf16", sys.executable, "twostroke_worker", (*own, *schema)),
        System("llama.cpp", "bf16", python, "llama_cpp_worker", peer),
        System(*("llama.cpp, guided", "bf16", python, "llama_cpp_guided_worker", (*peer, *schema))),
    ]


def _table(done: dict[tuple[str, int], list[Round]], requests: tuple[int, ...]) -> list[str]:
    rows = [
        "| requests | system | TPOT, ms | against its own free text | twostroke's against it |",
        "|---:|---|---:|---:|---:|",
    ]
    for count in requests:
        for (name, number), each in done.items():
            if number != count:
                continue
            plain = done[name.split(",")[0], count]
            kind = "twostroke, guided" if "guided" in name else "twostroke"
            against_own = statistics.median(_tpot(a) / _tpot(b) for a, b in zip(each, plain))
            ours = statistics.median(_tpot(a) / _tpot(b) for a, b in zip(each, done[kind, count]))
            seconds = statistics.median(map(_tpot, each))
            rows.append(
                f"| {count} | {name} | {1e3 * seconds:.2f} | {against_own:.2f}x | {ours:.2f}x |"
            )
    return rows


def _tpot(one: Round) -> float:
    """Mean seconds a token, over all requests of a round."""
    return statistics.mean((t[-1] - t[0]) / (len(t) - 1) for t in one.times)


if __name__ == "__main__":
    cyclopts.run(main)
