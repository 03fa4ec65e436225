"""A thousand streams at once, and two thousand arrivals, through a router with two workers.

    python -m benchmarks.failover.many_streams

The embedded model on one machine; all connections are open before the first request is sent. None
may be refused: the queue has room for all of them. Writes benchmarks/results/many_streams.json and
.md.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.failover.router_latency import RESULTS, running_router
from tests.server.engines.many_streams import outcomes

LOADS = ((1000, 16), (2048, 2))  # at once, tokens of each answer
BODY = {"model": "pilot", "prompt": "The river", "ignore_eos": True}


def main(*, out: Path = RESULTS) -> None:
    """Measure and record."""
    other_programs, rows = OtherPrograms(), list[tuple[int, int, Counter[str], float]]()
    flags = ("--max-queued-requests", "4096", "--router", "least-loaded")
    with (
        tempfile.TemporaryDirectory(prefix="twostroke-streams-") as folder,
        running_router(Path(folder), 2, flags) as url,
    ):
        for streams, tokens in LOADS:
            began = time.monotonic()
            ended = asyncio.run(outcomes(url, {**BODY, "max_tokens": tokens}, streams, 300))
            rows.append((streams, tokens, ended, time.monotonic() - began))
            print(rows[-1], flush=True)
    lines = ["| at once | tokens each | how they ended | seconds |", "|--:|--:|---|--:|"]
    lines += [
        f"| {streams} | {tokens} | {', '.join(f'{n} {what}' for what, n in ended.items())}"
        f" | {seconds:.1f} |"
        for streams, tokens, ended, seconds in rows
    ]
    command = shlex.join(["python", "-m", "benchmarks.failover.many_streams", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    record: dict[str, Any] = {
        "environment": where,
        "loads": [
            {"streams": streams, "tokens": tokens, "outcomes": dict(ended), "seconds": seconds}
            for streams, tokens, ended, seconds in rows
        ],
    }
    text = environment_text(where) + "\n" + "\n".join(lines) + "\n"
    write_record(out / "many_streams", "Many streams through a router", text, record)


if __name__ == "__main__":
    cyclopts.run(main)
