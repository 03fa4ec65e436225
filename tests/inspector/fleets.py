"""Recordings of small simulated fleets, a live one of scripted engines, and their pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple
from unittest.mock import patch

from tests.engine.process import scripted_engine
from tests.engine.process.scripted_process import started
from tests.inspector.showing import page_over
from tests.server.running import ROOT, running_server
from twostroke.cli.main import run
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.process import process_link
from twostroke.engine.process.replicas import Replicas
from twostroke.inspector.fleet.recorded_fleet import RecordedFleet
from twostroke.routing.make_router import make_router
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


@contextmanager
def live_fleet(folder: Path) -> Iterator[tuple[Replicas, str]]:
    """Two scripted engines in processes of their own behind a server, and its address."""
    environment = {
        "TWOSTROKE_TEST_HUNG": str(folder / "hung"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    with (
        patch.dict(os.environ, environment),
        patch.object(process_link, "MODULE", scripted_engine.__name__),
        patch.object(process_link, "PAUSES", (30.0,)),
    ):
        replicas = Replicas([started(rank) for rank in range(2)], make_router("least-loaded"))
        tokenizer = replicas.engines[0].tokenizer
        model = LoadedModel(replicas, tokenizer, GrammarCompiler(tokenizer))
        try:
            with running_server(Loaded(model)) as url:
                yield replicas, url
        finally:
            replicas.close()


class Loaded(NamedTuple):
    """Implements ``Loadable`` for what is loaded already."""

    model: LoadedModel

    def loaded_model(self) -> LoadedModel:
        return self.model
