"""Recorded passes are compared with eager ones, where nothing is recorded but run each time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import correctness, page
from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.runtime.recorded_passes import PreparedAnew, run_each_time
from twostroke.core.config import EngineConfig
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.passes.record import record_graphs
from twostroke.runtime.torch_executor import TorchExecutor

BATCHES = (1, 3, 5)


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "BATCHES", BATCHES)
    monkeypatch.setattr(SdpaBackend, "fixed_tables", lambda self, *_: PreparedAnew(self))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", tiny_config("llama"))


def load(config: EngineConfig) -> TorchExecutor:
    """As on a GPU."""
    executor = load_torch_executor(config)
    if not config.model.enforce_eager:
        record_graphs(executor, range(1, max(BATCHES) + 1), run_each_time)
        executor.info = replace(executor.info, runs_ahead=True)
    return executor


def test_recorded_passes_give_the_tokens_of_eager_ones(folder: Path) -> None:
    row = correctness.against_eager(folder, "llama", "cpu", load)
    assert row == {
        "family": "llama",
        "replayed_rows": list(BATCHES),
        "against_eager": list(BATCHES),
        "different": [],
    }


def test_requests_that_differ_are_listed(folder: Path, tmp_path: Path) -> None:
    config = tiny_config("llama")
    other = write_checkpoint(tmp_path / "other", config, random_tensors(config, seed=1))

    def load_another(config: EngineConfig) -> TorchExecutor:
        is_eager = config.model.enforce_eager
        model = replace(config.model, model=str(other)) if is_eager else config.model
        return load(replace(config, model=model))

    row = correctness.against_eager(folder, "llama", "cpu", load_another)
    assert row["replayed_rows"] == list(BATCHES) and "failed" not in row
    assert row["different"] == [
        f"request {number} of {count}" for count in BATCHES for number in range(count)
    ]


def test_where_nothing_is_recorded_the_row_fails(folder: Path) -> None:
    row = correctness.against_eager(folder, "llama", "cpu")
    assert row["failed"] == "no recorded pass of [1, 3, 5] rows was run"


def test_tokens_that_are_not_there_differ() -> None:
    same: correctness.Answers = {1: {"0": [1, 2]}, 2: {"0": [1], "1": [3]}}
    assert correctness.differing(same, same) == []
    less = {1: {"0": [1, 2]}, 2: {"1": [3, 4]}}
    assert correctness.differing(less, same) == ["request 0 of 2", "request 1 of 2"]


def test_the_page_says_what_was_compared() -> None:
    row: dict[str, Any] = {"family": "llama", "against_eager": [1, 3], "different": []}
    rows = [{"family": "llama", "recorded": True, "different": []}, row]
    record = {"device": "d", "torch": "t", "python": "p", "date": "2026-01-01", "commit": "c"}
    text = " ".join(" ".join(page.correctness({**record, "rows": rows})).split())
    assert "1 families in float32, 1 of them by recorded passes" in text
    assert "Recorded passes against `--enforce-eager`, 1, 3 requests at a time" in text
    assert text.endswith("of llama. Different: none.")
    assert json.loads(json.dumps(rows)) == rows
    row["different"] = ["request 0 of 3"]
    assert page.correctness({**record, "rows": rows})[-1].endswith("Different: llama.\n")
