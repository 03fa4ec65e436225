"""Recordings of small simulated fleets, and their page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.inspector.showing import page_over
from twostroke.cli.main import run
from twostroke.inspector.fleet.recorded_fleet import RecordedFleet
from twostroke.server.inspecting import fleet_app

REPLICAS = 3


@cache
def fleet_recording() -> Path:
    """Sessions on three replicas that know their prefixes; some requests wait."""
    folder = Path(mkdtemp())
    flags = ["--num-requests", "120", "--rate", "60", "--max-num-seqs", "8", "--turns", "3"]
    flags += ["--replicas", str(REPLICAS), "--router", "prefix-affinity", "--workload", "sessions"]
    path = folder / "steps.jsonl"
    assert run(["simulate", "llama-3.1-8b", "--gpu", "h100", *flags, "--record", str(path)]) == 0
    return folder / "steps.fleet.jsonl"


@contextmanager
def fleet_page(path: Path) -> Iterator[str]:
    """The address of the page over a fleet's file, all of it read."""
    fleet = RecordedFleet(path)
    with page_over(fleet_app(fleet)) as address:
        try:
            for replica in fleet.replicas:
                assert replica is None or replica.wait_until_read(30)
            yield address
        finally:
            fleet.close()
