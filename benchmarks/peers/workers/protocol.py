"""What every worker does: load once, then run rounds on demand. Standard library only.

A worker is run by the Python of its peer's own virtual environment. It reads one JSON object a line
from stdin and answers with one through a pipe of its own, since peers print what they like.
``{"prompts": [[token, ...], ...], "output_len": n}`` asks for a round: all prompts at once, greedy,
``n`` tokens each, the end token ignored. Linux only: it tells how much memory is resident.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prompts = list[list[int]]


class Clock:
    """When which request got a token, in seconds since the round began."""

    def __init__(self, requests: int) -> None:
        self._began = time.perf_counter()
        self.times: list[list[float]] = [[] for _ in range(requests)]
        self.tokens: list[list[int]] = [[] for _ in range(requests)]

    def note(self, request: int, tokens: list[int]) -> None:
        """A request got these tokens now."""
        now = time.perf_counter() - self._began
        self.times[request] += [now] * len(tokens)
        self.tokens[request] += tokens


def serve(
    name: str,
    version: str,
    run: Callable[[Prompts, int, Clock], None],
    *,
    load_seconds: float = 0.0,
    **about: Any,
) -> None:
    """Say that the model is loaded, then answer until stdin ends.

    Args:
        run: Runs a round and tells the clock of every token as soon as a client could have it.
        load_seconds: From a path to a model that answers, imports not counted.
        about: Settings worth recording.
    """
    out = os.fdopen(int(os.environ["PEER_STDOUT"]), "w", buffering=1)

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    about |= {"load_seconds": load_seconds, "resident": resident()}
    say({"name": name, "version": version, "about": about})
    for line in sys.stdin:
        asked = json.loads(line)
        clock = Clock(len(asked["prompts"]))
        run(asked["prompts"], asked["output_len"], clock)
        say({"times": clock.times, "tokens": clock.tokens, "resident": resident()})


def resident() -> int:
    """Bytes of this process that are in memory, pages of files that it maps among them."""
    status = Path("/proc/self/status").read_text().split("VmRSS:")
    return int(status[1].split()[0]) * 1024
