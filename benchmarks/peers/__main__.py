"""twostroke beside its peers: one machine, one run, all loaded at once, rounds in turn.

Every peer lives in a virtual environment of its own; ``benchmarks/peers/README.md`` says how to
make them. In each round every system gets the same random prompts at once, and its tokens are timed
as its own loop yields them: no HTTP. Writes ``peers-NAME.json`` and ``.md``;
``benchmarks.peers.overview`` puts the records into one table.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text
from benchmarks.peers.report import FiguresByConcurrency, figures, tables
from benchmarks.peers.systems import Round, System, Worker, own_files, own_systems, running

RESULTS = Path(__file__).parents[1] / "results"
PAUSE = 0.5  # seconds before each round: threads of the one before spin on for up to 0.2
LLAMA_FORMATS = {"bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}


def main(
    model: Path,
    *,
    llama_cpp: str | None = None,
    gguf: Path | None = None,
    transformers: str | None = None,
    vllm: str | None = None,
    kinds: tuple[str, ...] = ("bf16", "int8", "int4"),
    files: tuple[str, ...] = (),
    concurrency: tuple[int, ...] = (1, 4, 16),
    rounds: int = 3,
    input_len: int = 256,
    output_len: int = 64,
    threads: int = 2,
    name: str = "llama-cpp",
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: Folder of the checkpoint, bfloat16 (`benchmarks/make_checkpoint.py`); what is asked
            of 350m and 10m is looked up by the folder's name.
        llama_cpp: Python of the environment with llama-cpp-python.
        gguf: Folder with files by format, as bf16.gguf (`workers/gguf_convert.py`).
        transformers: Python of the environment with transformers.
        vllm: Python of the environment with vLLM.
        kinds: Precisions of twostroke and llama.cpp.
        files: Names of files in the folder of GGUF files, as q4_k_m, that both load.
        concurrency: How many requests at once.
        rounds: How often each is measured; medians are reported.
        name: Of the record.
    """
    model, room = model.resolve(), input_len + output_len
    systems = own_systems(model, threads, kinds)
    if gguf is not None:
        systems += own_files(gguf, threads, files)
    if llama_cpp is not None and gguf is not None:
        for format, kind in {**LLAMA_FORMATS, **{file: file for file in files}}.items():
            path = (gguf / f"{format}.gguf").resolve()
            sizes = ("--sequences", str(max(concurrency)), "--tokens", str(max(512, room)))
            arguments = ("--model", str(path), "--threads", str(threads), *sizes)
            if kind in (*kinds, *files):
                systems.append(
                    System(f"llama.cpp {format}", kind, llama_cpp, "llama_cpp_worker", arguments)
                )
    for label, python in (("transformers", transformers), ("vLLM", vllm)):
        if python is not None:
            plain = ("--model", str(model), "--threads", str(threads))
            systems.append(
                System(f"{label} bf16", "bf16", python, f"{label.lower()}_worker", plain)
            )
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    other_programs = OtherPrograms()
    with (
        tempfile.TemporaryDirectory(prefix="twostroke-peers-") as folder,
        running(systems, Path(folder)) as workers,
    ):
        measured = {
            count: _measure(workers, count, rounds, vocabulary, input_len, output_len)
            for count in concurrency
        }
        about = {worker.system.name: worker.about for worker in workers}
    command = shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    what = f"{model.name}, {input_len} tokens in, {output_len} out; {rounds} rounds"
    _write(measured, where, about, model.name, what, out / f"peers-{name}")


def _measure(
    workers: list[Worker], count: int, rounds: int, vocabulary: int, input_len: int, output_len: int
) -> dict[str, Any]:
    """All systems at one concurrency; the first round, a short one, is not counted."""
    rounds_by_system: dict[str, list[Round]] = {worker.system.name: [] for worker in workers}
    for number in range(rounds + 1):
        draw = random.Random(f"{count} {number}")
        prompts = [
            [draw.randrange(300, vocabulary) for _ in range(input_len)] for _ in range(count)
        ]
        # In turn, and each time another first: a machine that slows down meanwhile slows all.
        turn = number % len(workers)
        for worker in workers[turn:] + workers[:turn]:
            time.sleep(PAUSE)
            one = worker.run(prompts, output_len if number else 4)
            if number:
                rounds_by_system[worker.system.name].append(one)
                last = max(times[-1] for times in one.times)
                print(
                    f"{count:3} requests, {worker.system.name:18} {last:7.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
    reference = rounds_by_system.get("twostroke bf16")
    return {
        name: figures(system_rounds, reference) for name, system_rounds in rounds_by_system.items()
    }


def _write(
    measured: FiguresByConcurrency,
    where: dict[str, Any],
    about: dict[str, Any],
    model: str,
    what: str,
    path: Path,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "environment": where,
        "model": model,
        "systems": about,
        "figures": {
            count: {n: asdict(f) for n, f in each.items()} for count, each in measured.items()
        },
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    versions = ", ".join(sorted({f"{one['name']} {one['version']}" for one in about.values()}))
    text = (
        f"# Beside its peers\n\n{environment_text(where)}- {versions}\n- {what}; medians; all"
        " systems loaded\n  at once, rounds in turn, tokens timed in each engine's own"
        f" loop\n\n{tables(model, measured)}\n"
    )
    path.with_name(f"{path.name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    cyclopts.run(main)
