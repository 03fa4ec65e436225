"""GGUF files in twostroke and in llama.cpp: how long they load, and what memory they take.

    python -m benchmarks.gguf.load_and_memory --llama-cpp PYTHON FILE.gguf ...

Each file is dropped from the page cache and read, dropped and loaded, by both in turn. Then both
hold as many tokens: a round of requests fills a KV cache of bfloat16 (llama.cpp: of float16, as it
does by default). Linux only. Writes benchmarks/results/gguf_load_and_memory.json and .md.
"""

from __future__ import annotations

import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.peers.systems import System, running
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.models.support import read_runnable

RESULTS = Path(__file__).parents[1] / "results"
INPUT, OUTPUT, REQUESTS, THREADS = 256, 64, 16, 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """Seconds of loading, medians, and resident bytes after a round of requests."""

    seconds: float
    resident: int


def main(*files: Path, llama_cpp: str, rounds: int = 3, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        files: GGUF files that both run.
        llama_cpp: Python of the environment with llama-cpp-python.
        rounds: How often each is loaded.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    lines = [
        "| file | bytes | read | load | llama.cpp | of reading | resident | llama.cpp | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    record: dict[str, object] = {}
    for file in files:
        read = statistics.median(read_seconds(file) for _ in range(rounds))
        own, peer = (median_of(system, file, rounds) for system in systems(file, llama_cpp))
        size = file.stat().st_size
        lines.append(
            f"| {file.stem} | {size / 1e6:.0f} MB | {read:.2f} s | {own.seconds:.2f} s"
            f" | {peer.seconds:.2f} s | {own.seconds / read:.2f} | {own.resident / 1e6:.0f} MB"
            f" | {peer.resident / 1e6:.0f} MB | {own.resident / peer.resident:.2f} |"
        )
        print(lines[-1], flush=True)
        record[file.stem] = {"read": read, "own": asdict(own), "llama.cpp": asdict(peer)}
    command = shlex.join(["python", "-m", "benchmarks.gguf.load_and_memory", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\nFiles are not in the page cache. Imports are not counted."
        f" Resident: after {REQUESTS} requests of {INPUT} +\n{OUTPUT} tokens at a time.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    title = "Load time and memory of GGUF files"
    written = {"environment": where, "files": record}
    write_record(out / "gguf_load_and_memory", title, text, written)


def systems(file: Path, llama_cpp: str) -> tuple[System, System]:
    """Both, with room for the same tokens."""
    room = 512  # a multiple of 256, as llama.cpp has it
    spec = read_runnable(open_checkpoint(file))
    kv_bytes = int(REQUESTS * room * spec.kv_bytes_per_token("bfloat16"))
    own = ("--kv-cache-memory", str(kv_bytes), "--max-model-len", str(room))
    peer = ("--sequences", str(REQUESTS), "--tokens", str(room))
    common = ("--model", str(file.resolve()), "--threads", str(THREADS))
    return (
        System("twostroke", "", sys.executable, "twostroke_worker", (*common, *own)),
        System("llama.cpp", "", llama_cpp, "llama_cpp_worker", (*common, *peer)),
    )


def read_seconds(file: Path) -> float:
    """How long the file's bytes take to come from where they are stored."""
    drop_from_cache(file)
    began = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        room = bytearray(8 * 2**20)
        while opened.readinto(room):
            pass
    return time.perf_counter() - began


def drop_from_cache(file: Path) -> None:
    """Have the next read go to where the file is stored."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def median_of(system: System, file: Path, rounds: int) -> Loaded:
    draw = random.Random(0)
    prompts = [[draw.randrange(300, 30_000) for _ in range(INPUT)] for _ in range(REQUESTS)]
    loaded = []
    for _ in range(rounds):
        drop_from_cache(file)
        with (
            tempfile.TemporaryDirectory(prefix="twostroke-load-") as folder,
            running([system], Path(folder)) as (worker,),
        ):
            resident = worker.run(prompts, OUTPUT).resident
            loaded.append(Loaded(worker.about["about"]["load_seconds"], resident))
    return Loaded(
        statistics.median(each.seconds for each in loaded),
        int(statistics.median(each.resident for each in loaded)),
    )


if __name__ == "__main__":
    cyclopts.run(main)
