"""The engines that are compared: each a process in its own venv, all loaded at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 20.0


class PeerFailedError(RuntimeError):
    """A worker ended before it had answered; carries the end of its log."""


@dataclass(frozen=True, slots=True)
class System:
    """One engine in one precision.

    Attributes:
        name: As the tables call it.
        kind: ``bf16``, ``int8`` or ``int4``: what it is compared with.
        python: The interpreter that has it.
        worker: Name of its module in ``workers/``.
        arguments: For the script.
    """

    name: str
    kind: str
    python: str
    worker: str
    arguments: tuple[str, ...]

    @property
    def own(self) -> bool:
        return self.name.startswith("twostroke")


@dataclass(slots=True)
class Round:
    """Seconds since the start of each request's tokens, and the tokens: [requests][tokens].

    Attributes:
        resident: Bytes of the system's process that are in memory afterwards.
    """

    times: list[list[float]]
    tokens: list[list[int]]
    resident: int = 0


@dataclass(slots=True)
class Worker:
    """A system that is loaded and waits."""

    system: System
    process: subprocess.Popen[str]
    answers: Any
    log: Path
    about: dict[str, Any] = field(default_factory=dict)

    def run(self, prompts: Sequence[Sequence[int]], output_len: int) -> Round:
        """One round: all prompts at once.

        Raises:
            PeerFailedError: It ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "output_len": output_len}) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        return Round(answer["times"], answer["tokens"], answer["resident"])

    def read(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise PeerFailedError(f"{self.system.name} ended with {self.process.wait()}:\n{end}")
        message: dict[str, Any] = json.loads(line)
        return message


def own_systems(model: Path, threads: int, kinds: Sequence[str]) -> list[System]:
    """twostroke in each of these precisions, from this checkout."""
    systems = []
    for kind in kinds:
        extra = () if kind == "bf16" else ("--quantization", kind)
        arguments = ("--model", str(model), "--threads", str(threads), *extra)
        systems.append(
            System(f"twostroke {kind}", kind, sys.executable, "twostroke_worker", arguments)
        )
    return systems


def own_files(folder: Path, threads: int, names: Sequence[str]) -> list[System]:
    """twostroke with GGUF files of these names, from this checkout."""
    systems = []
    for name in names:
        path = str((folder / f"{name}.gguf").resolve())
        arguments = ("--model", path, "--threads", str(threads))
        systems.append(
            System(f"twostroke {name}", name, sys.executable, "twostroke_worker", arguments)
        )
    return systems


@contextmanager
def running(systems: Sequence[System], folder: Path) -> Iterator[list[Worker]]:
    """Start all systems, one after the other, and end them; their logs go into ``folder``."""
    with ExitStack() as stack:
        workers = []
        for system in systems:
            print(f"loading {system.name}", file=sys.stderr, flush=True)
            worker = _start(system, folder / f"{system.name.replace(' ', '-')}.log")
            stack.callback(_end, worker)
            worker.about = worker.read()
            workers.append(worker)
        yield workers


def _start(system: System, log: Path) -> Worker:
    reading, writing = os.pipe()
    # A peer may print what it likes: answers have a pipe of their own.
    environment = {**os.environ, "PEER_STDOUT": str(writing), "HF_HUB_OFFLINE": "1"}
    if system.own:
        environment["OMP_WAIT_POLICY"] = (
            "PASSIVE"  # as twostroke sets it for itself, but here torch is imported before
        )
    else:
        # Peers wait as they are used to: threads that sleep between operators would make theirs
        # slower.
        environment.pop("OMP_WAIT_POLICY", None)
        environment.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [system.python, "-m", f"benchmarks.peers.workers.{system.worker}", *system.arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(writing,),
            env=environment,
            cwd=ROOT,
        )
    os.close(writing)
    return Worker(system, process, os.fdopen(reading), log)


def _end(worker: Worker) -> None:
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    try:
        worker.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        worker.process.wait()
    worker.answers.close()
