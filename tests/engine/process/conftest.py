"""Engines of these tests are scripted ones, started without pauses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.process import scripted_engine
from tests.server.running import ROOT
from twostroke.engine.process import process_link


@pytest.fixture(autouse=True)
def watchers_end() -> Iterator[None]:
    """What a test leaves behind is not to be found in the next one."""
    yield
    for thread in threading.enumerate():
        if thread.name == "twostroke-watch-engine":
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_link, "MODULE", scripted_engine.__name__)
    monkeypatch.setattr(process_link, "PAUSES", (0.0, 0.05, 0.05, 0.05, 0.05))
    monkeypatch.setenv("TWOSTROKE_TEST_HUNG", str(tmp_path / "hung"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
