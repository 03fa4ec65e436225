"""Kills the engine's process at every event of a stream in turn: does the client see a difference?

    python -m benchmarks.failover.every_token [--stride N]

``twostroke serve --engine-process`` with the embedded model. Each kind of call is streamed once
undisturbed, and then once for each event after which the engine gets SIGKILL. Linux only. Writes
benchmarks/results/failover_every_token.json and .md.
"""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.server import ServerProcess, running_server
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of

RESULTS = Path(__file__).parents[1] / "results"
FLAGS = ("--engine-process", "--no-enable-prefix-caching", "--kv-cache-memory", "64MiB")
_CHATS = chat_calls(max_tokens=40)
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: ("chat/completions", body) for kind, body in _CHATS.items()},
    "n = 3": ("completions", {"prompt": "The river", "n": 3, "max_tokens": 16, "logprobs": 1}),
    "speculation": ("chat/completions", _CHATS["plain"]),
}


@dataclass
class Outcome:
    """What became of the streams of one kind.

    Attributes:
        events: Of the undisturbed stream.
        other: Events after which a kill changed what the client got.
        pauses: Seconds from a kill to the next event.
    """

    events: int
    kills: int = 0
    other: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


def main(*, stride: int = 1, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        stride: Kill after each so many-th event only.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="twostroke-failover-") as name:
        log = Path(name) / "server.log"
        with running_server("pilot", log, *FLAGS) as server:
            for kind in [kind for kind in CALLS if kind != "speculation"]:
                outcomes[kind] = disturb(server, log, kind, stride)
        with running_server("pilot", log, *FLAGS, "--speculation", "ngram") as server:
            outcomes["speculation"] = disturb(server, log, "speculation", stride)
    lines = [
        "| call | events | kills | the same bytes | pause, median s | longest |",
        "|---|--:|--:|--:|--:|--:|",
        *(row(kind, outcome) for kind, outcome in outcomes.items()),
    ]
    command = shlex.join(["python", "-m", "benchmarks.failover.every_token", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = environment_text(where) + "\n" + "\n".join(lines) + "\n"
    record: dict[str, Any] = {
        "environment": where,
        "outcomes": {kind: asdict(outcome) for kind, outcome in outcomes.items()},
    }
    write_record(out / "failover_every_token", "An engine killed at every event", text, record)


def disturb(server: ServerProcess, log: Path, kind: str, stride: int) -> Outcome:
    """Stream one call again and again, with the engine killed after another event each time."""
    expected, _ = stream(server, kind, None)
    outcome = Outcome(len(expected))
    for index in range(1, len(expected) - 1, stride):
        number = num_starts(log) + 1
        events, pause = stream(server, kind, index)
        outcome.kills += 1
        outcome.pauses.append(pause)
        if content_of(events) != content_of(expected):
            outcome.other.append(index)
        wait_for_start(server, log, number)
        print(f"{kind}: {index} of {len(expected)}, pause {pause:.2f} s", end="\r", flush=True)
    print(row(kind, outcome), flush=True)
    return outcome


def stream(server: ServerProcess, kind: str, kill_after: int | None) -> tuple[list[str], float]:
    """The events, and the pause after the kill."""
    route, body = CALLS[kind]
    body = {"model": "pilot", "seed": 11, "temperature": 0.9, "stream": True, **body}
    events: list[str] = []
    killed, pause = 0.0, 0.0
    url = f"{server.url}/v1/{route}"
    with httpx.stream("POST", url, json=body, timeout=120, trust_env=False) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data"):
                continue
            events.append(line)
            if killed and not pause:
                pause = time.perf_counter() - killed
            if len(events) == kill_after:
                os.kill(engine_of(server), signal.SIGKILL)
                killed = time.perf_counter()
    return events, pause


def engine_of(server: ServerProcess) -> int:
    """The id of the engine's process."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()  # any thread may have started it
    for child in " ".join((task / "children").read_text() for task in tasks).split():
        if b"engine_process" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise RuntimeError("the server has no engine at the moment")


def num_starts(log: Path) -> int:
    """How often an engine was started again."""
    return log.read_text().count("the engine runs again")


def wait_for_start(server: ServerProcess, log: Path, number: int) -> None:
    """Wait until an engine was started again so often, and the server is well."""
    deadline = time.monotonic() + 60
    health = f"{server.url}/health"
    while num_starts(log) < number or httpx.get(health, trust_env=False).status_code != 200:
        if time.monotonic() > deadline:
            raise TimeoutError("the engine has not come back")
        time.sleep(0.05)


def row(kind: str, outcome: Outcome) -> str:
    same = outcome.kills - len(outcome.other)
    pauses = outcome.pauses or [0.0]
    return (
        f"| {kind} | {outcome.events} | {outcome.kills} | {same}"
        f" | {statistics.median(pauses):.2f} | {max(pauses):.2f} |"
    )


if __name__ == "__main__":
    cyclopts.run(main)
