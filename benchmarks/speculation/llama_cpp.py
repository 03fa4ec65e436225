"""Drafts of the same pair beside llama.cpp, in one run: pilot's function in 306 M and pilot-draft.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python==0.3.36 gguf==0.18.0
    python -m benchmarks.speculation.llama_cpp --python /tmp/llama/bin/python

Greedy answers of a fixed length to the bank's held-out questions, one request at a time: twostroke
and llama.cpp, each without drafts and with them, all loaded at once, rounds in turn. llama.cpp
drafts 3 tokens (its default) and 8. Writes speculation_llama_cpp.json and .md.
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
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.peers.systems import ROOT, Round, System, running
from benchmarks.speculation.tasks import questions
from benchmarks.speculation.widened import widened
from twostroke.model_spec.model_files import resolve_model
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer

RESULTS = Path(__file__).parents[1] / "results"
PAUSE = 0.5  # seconds before each round: threads of the one before spin on for up to 0.2


def main(
    *,
    python: str,
    rounds: int = 5,
    output_len: int = 64,
    threads: int = 2,
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        python: Of the environment with llama-cpp-python and gguf.
        rounds: How often each is measured; medians are reported.
        output_len: Tokens of an answer, the end token ignored.
        out: Folder for the record.
    """
    target, draft = widened("pilot"), resolve_model("pilot-draft")
    tokenizer = Tokenizer.from_folder(target)
    encoder = ChatEncoder(ChatTemplate.from_tokenizer(tokenizer), tokenizer)
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-pair-") as folder:
        files = [_gguf(python, each, Path(folder)) for each in (target, draft)]
        systems = _systems(python, target, draft, files, threads)
        done: dict[str, list[Round]] = {system.name: [] for system in systems}
        with running(systems, Path(folder)) as workers:
            versions = sorted({f"{w.about['name']} {w.about['version']}" for w in workers})
            for number in range(rounds + 1):
                [messages] = questions(number, 1)
                prompt = encoder.encode(messages, add_generation_prompt=True)
                turn = number % len(workers)
                for worker in workers[turn:] + workers[:turn]:
                    time.sleep(PAUSE)
                    one = worker.run([prompt], output_len if number else 8)
                    if number:
                        done[worker.system.name].append(one)
                print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.speculation.llama_cpp", *sys.argv[1:]]),
        other_programs.share(),
    )
    _write(done, versions, rounds, output_len, where, out)


def _systems(
    python: str, target: Path, draft: Path, files: list[Path], threads: int
) -> list[System]:
    settings = json.dumps({"method": "draft", "model": str(draft)})
    own = ("--model", str(target), "--threads", str(threads))
    peer = ("--model", str(files[0]), "--threads", str(threads))
    with_draft = (*peer, "--draft", str(files[1]))
    worker = "llama_cpp_speculation_worker"
    return [
        System("twostroke", "bf16", sys.executable, "twostroke_worker", own),
        System(
            "twostroke, drafts",
            *("bf16", sys.executable, "twostroke_worker"),
            (*own, "--speculative-config", settings),
        ),
        System("llama.cpp", "bf16", python, "llama_cpp_worker", (*peer, "--sequences", "1")),
        System("llama.cpp, 3 drafts", "bf16", python, worker, (*with_draft, "--drafts", "3")),
        System("llama.cpp, 8 drafts", "bf16", python, worker, (*with_draft, "--drafts", "8")),
    ]


def _gguf(python: str, model: Path, folder: Path) -> Path:
    target = folder / f"{model.name}.gguf"
    converter = "benchmarks.peers.workers.gguf_convert"
    command = [python, "-m", converter, str(model), str(target), "--only-bf16"]
    subprocess.run(command, check=True, cwd=ROOT)
    return target / "bf16.gguf"


def _write(
    done: dict[str, list[Round]],
    versions: list[str],
    rounds: int,
    output_len: int,
    where: dict[str, Any],
    out: Path,
) -> None:
    rows = [
        "| system | TPOT, ms | against its own without drafts | twostroke's drafts against it |",
        "|---|---:|---:|---:|",
    ]
    tpots = {name: [_tpot(one) for one in each] for name, each in done.items()}
    ours = tpots["twostroke, drafts"]
    for name, each in tpots.items():
        plain = tpots[name.split(",")[0]]
        faster = statistics.median(a / b for a, b in zip(plain, each))
        against = statistics.median(a / b for a, b in zip(each, ours))
        median = 1e3 * statistics.median(each)
        rows.append(f"| {name} | {median:.2f} | {faster:.2f}x | {against:.2f}x |")
    text = (
        f"{environment_text(where)}- {', '.join(versions)}\n- one request, {output_len} tokens,"
        f" greedy; medians of {rounds} rounds in turn\n\n" + "\n".join(rows)
    )
    record = {"environment": where, "versions": versions, "tpot_seconds": tpots}
    write_record(out / "speculation_llama_cpp", "Drafts beside llama.cpp", text, record)
    print(text)


def _tpot(one: Round) -> float:
    [times] = one.times
    return (times[-1] - times[0]) / (len(times) - 1)


if __name__ == "__main__":
    cyclopts.run(main)
