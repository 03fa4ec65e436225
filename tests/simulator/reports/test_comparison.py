"""Comparisons on a terminal: runs can be told apart at any width."""

from __future__ import annotations

import io
from typing import Any

import pytest

from twostroke.simulator.reports.comparison import COMPARED, notes_of, print_comparison


def run_of(label: str, **values: float | None) -> dict[str, Any]:
    return {"label": label, **{key: 1.0 for key, _, _ in COMPARED}, **values}


def printed(runs: list[dict[str, Any]], width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    print_comparison(runs, stream)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_few_runs_stand_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed([run_of("tp=1"), run_of("tp=2", p99_ttft_ms=12.34)], 80, monkeypatch)
    assert ["TTFT p99 ms", "1.0", "12.3"] in [
        [part.strip() for part in line.split("   ") if part] for line in lines
    ]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_many_runs_have_a_row_each_with_every_value_that_differs(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flags with long names on 80 columns: names wrap, values do not."""
    runs = [
        run_of(f"batching={batching}, max_num_batched_tokens={tokens}", p99_ttft_ms=10.0 * tokens)
        for batching in ("static", "continuous")
        for tokens in (512, 2048, 8192)
    ]
    runs.append(run_of("before: rate=3"))
    rows = [line.split() for line in printed(runs, width, monkeypatch)]
    assert all(len(line) <= width for line in printed(runs, width, monkeypatch))
    for batching in ("static", "continuous"):
        for tokens in ("512", "2048", "8192"):
            (row,) = [row for row in rows if batching in row and tokens in row]
            assert f"{tokens}0.0" in row
    (row,) = [row for row in rows if "before" in row]
    assert "3" in row
    # Cost, MFU and MBU.
    assert {row.count("1.000") for row in rows if "static" in row} == {3 if width == 200 else 1}


def test_a_note_of_all_runs_is_said_once_and_another_names_who_has_it() -> None:
    notes = {"a": ["every", "some"], "b": ["every", "one"], "c": ["some", "every", "every"]}
    runs = [{"label": label, "notes": of} for label, of in notes.items()]
    assert notes_of(runs) == ["every", "a and 1 more: some", "b: one"]
    assert notes_of([{"label": "", "notes": ["alone"]}]) == ["alone"]


def test_what_no_run_has_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_of(f"gpu={name}", request_goodput=None) for name in ("h100", "l40s")]
    assert not any("goodput" in line for line in printed(runs, 80, monkeypatch))
    runs[0]["request_goodput"] = 2.5
    assert any("goodput" in line and line.endswith("-") for line in printed(runs, 80, monkeypatch))
