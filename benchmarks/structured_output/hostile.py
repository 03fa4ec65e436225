"""What hostile schemas cost another client: the time between tokens of a stream beside them.

    python -m benchmarks.structured_output.hostile MODEL [--out FILE]

One client streams answers without a break. Another sends each schema of the server's test of
hostile ones, one a second. Every second with a schema is compared with the one before it, which has
none: other work on the machine slows both.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import cyclopts
import httpx

from benchmarks.environment import OtherPrograms, environment
from benchmarks.server import running_server
from tests.server.openai.test_answer_form import HOSTILE, json_text

SLICE = 1.0  # seconds
FREE = {"prompt": "A list of people: ", "max_tokens": 400, "ignore_eos": True, "stream": True}


class Stream:
    """A client that reads answers token by token, one answer after the other."""

    def __init__(self, url: str) -> None:
        self.times: list[float] = []  # of tokens; an answer's first token begins a new gap
        self._first: set[int] = set()
        self._url = url
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between tokens of the same answer, of those that came within a time."""
        times, first = list(self.times), set(self._first)
        return [
            after - before
            for place, (before, after) in enumerate(itertools.pairwise(times), 1)
            if begin <= after < end and place not in first
        ]

    def _read(self) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            for seed in itertools.count():
                if self._done.is_set():
                    return
                self._first.add(len(self.times))
                body = {**FREE, "seed": seed}
                with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        if line.startswith("data: {"):
                            self.times.append(time.perf_counter())


def main(model: str, *, out: Path | None = None, rounds: int = 5) -> None:
    """Print for each schema how long its answer took and what it did to the stream.

    Args:
        out: Where the record goes.
        rounds: Of all schemas.
    """
    others = OtherPrograms()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in HOSTILE}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with running_server(model, log, "--kv-cache-memory", "1GiB") as server:
            stream = Stream(server.url)
            time.sleep(2)
            for number, (name, schema) in itertools.product(range(rounds), HOSTILE.items()):
                # No schema is the same twice, or it would be found compiled.
                asked = {"prompt": "a", "max_tokens": 2, "guided_json": {**schema, "x-n": number}}
                found[name].append(_beside(server.url, stream, json_text(asked).encode()))
                print(f"{number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            stream.stop()
    rows = [_row(name, each) for name, each in found.items()]
    everything = _row("all", [one for each in found.values() for one in each])
    for row in [*rows, everything]:
        print(json.dumps(row))
    where = environment(" ".join(["python -m", __spec__.name, *sys.argv[1:]]), others.share())
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {"environment": where, "rows": rows, "all": everything}
        out.write_text(json.dumps(record, indent=1) + "\n")


def _beside(url: str, stream: Stream, body: bytes) -> dict[str, Any]:
    time.sleep(SLICE)
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/completions", content=body, timeout=60, trust_env=False)
    seconds = time.perf_counter() - began
    time.sleep(max(0.0, SLICE - seconds))
    return {
        "status": answer.status_code,
        "seconds": seconds,
        "calm": stream.gaps(began - SLICE, began),
        "beside": stream.gaps(began, began + max(SLICE, seconds)),
    }


def _row(name: str, each: list[dict[str, Any]]) -> dict[str, Any]:
    calm, beside = ([gap for one in each for gap in one[kind]] for kind in ("calm", "beside"))
    return {
        "schema": name,
        "status": sorted({one["status"] for one in each}),
        "slowest_answer_ms": round(1e3 * max(one["seconds"] for one in each), 1),
        "calm_tpot_ms": round(1e3 * statistics.mean(calm), 2),
        "tpot_ms": round(1e3 * statistics.mean(beside), 2),
        "tpot_ratio": round(statistics.mean(beside) / statistics.mean(calm), 3),
        "median_ratio": round(statistics.median(beside) / statistics.median(calm), 3),
        "longest_gap_ms": round(1e3 * max(beside), 1),
        "longest_calm_gap_ms": round(1e3 * max(calm), 1),
    }


if __name__ == "__main__":
    cyclopts.run(main)
