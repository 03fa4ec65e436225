"""Memory that a server takes beside its weights and its KV cache.

    python -m benchmarks.memory MODEL

Linux only. A cache of a given size is filled to its last block by requests, so that all of its
pages are there; then the process's resident memory is read. Writes benchmarks/results/memory.json
and .md.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text
from benchmarks.server import running_server
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.flags.byte_sizes import parse_size
from twostroke.models.support import read_runnable
from twostroke.runtime.weights import loaded_bytes

RESULTS = Path(__file__).parent / "results"
TARGET = 400e6  # bytes beside weights and KV
PROMPT, OUTPUT, CLIENTS = 1024, 16, 16


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes that the model needs, and that the process has: healthy, after load, at its peak."""

    weights: int
    kv: int
    healthy: int
    loaded: int
    peak: int

    @property
    def beside(self) -> int:
        """What remains after weights and KV are taken off."""
        return self.loaded - self.weights - self.kv


def main(
    model: Path,
    *,
    kv: str = "1GiB",
    quantizations: tuple[str, ...] = ("none", "int8"),
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: Folder of a checkpoint.
        kv: Size of the KV cache.
        quantizations: Of the weights; `none` keeps them.
    """
    other_programs = OtherPrograms()
    resident = {
        name: measure(model, parse_size(kv), None if name == "none" else name)
        for name in quantizations
    }
    where = environment(
        shlex.join(["python", "-m", "benchmarks.memory", *sys.argv[1:]]), other_programs.share()
    )
    lines = [
        "| weights | bytes | KV | healthy | all blocks used | beside both | target | most ever |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, r in resident.items():
        verdict = "met" if r.beside <= TARGET else "MISSED"
        cells = (
            name,
            *(
                f"{count / 1e6:.0f} MB"
                for count in (r.weights, r.kv, r.healthy, r.loaded, r.beside)
            ),
        )
        lines.append(
            f"| {' | '.join(cells)} | {TARGET / 1e6:.0f} MB: {verdict} | {r.peak / 1e6:.0f} MB |"
        )
    text = (
        f"# Resident memory of a server\n\n{environment_text(where)}\n"
        + "\n".join(lines)
        + f"\n\n{CLIENTS} clients at once, {PROMPT} tokens in, {OUTPUT} out, until every block was"
        "\nused. What is there while loading counts in the most ever, pages of the checkpoint"
        " included\nthat the system may drop at any time.\n"
    )
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "environment": where,
        "resident": {name: asdict(figures) for name, figures in resident.items()},
    }
    (out / "memory.json").write_text(json.dumps(record, indent=1) + "\n")
    (out / "memory.md").write_text(text)
    print(text)


def measure(model: Path, kv: int, quantization: str | None) -> Resident:
    """Start a server, use every block of its cache, read its memory."""
    spec = read_runnable(open_checkpoint(model))
    flags = [
        "--kv-cache-memory",
        str(kv),
        *(["--quantization", quantization] if quantization else []),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="twostroke-memory-") as folder,
        running_server(str(model), Path(folder) / "server.log", *flags) as server,
    ):
        healthy = status_bytes(server.process.pid, "VmRSS")
        requests = -(-kv // int(spec.kv_bytes_per_token()) // PROMPT) + CLIENTS
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(
                pool.map(
                    lambda number: _complete(server.url, str(model), spec.vocab_size, number),
                    range(requests),
                )
            )
        loaded, peak = (status_bytes(server.process.pid, name) for name in ("VmRSS", "VmHWM"))
    return Resident(loaded_bytes(spec, 2, quantization), kv, healthy, loaded, peak)


def _complete(url: str, model: str, vocabulary: int, number: int) -> None:
    draw = random.Random(number)
    prompt = [draw.randrange(300, vocabulary) for _ in range(PROMPT)]
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
    }
    httpx.post(f"{url}/v1/completions", json=body, timeout=600, trust_env=False).raise_for_status()


def status_bytes(pid: int, name: str) -> int:
    """A size from ``/proc/PID/status``, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    cyclopts.run(main)
