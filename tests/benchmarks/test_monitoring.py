"""Protects: what the benchmarks of monitoring compute from what they measured."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from benchmarks.monitoring import cost, pictures


def test_ratios_are_those_of_the_same_round() -> None:
    """A machine that halves its speed in the second round changes no ratio."""
    text = cost.table({"plain": [100.0, 50.0], "watched": [99.0, 49.5], "traced": [98.0, 49.0]})
    assert "| watched | 74 | 0.990 | 0.990 | 0.990 | at least 0.99 |" in text
    assert "| traced | 74 | 0.980 | 0.980 | 0.980 | at least 0.97 |" in text


def test_shares_are_percentages() -> None:
    assert "| TimelineObserver | 0.12% |" in cost.share_table({"TimelineObserver": 0.00123})


def test_legends_have_the_labels() -> None:
    assert pictures.legend("{{target}} {{window}}", {"target": "a", "window": "5m"}) == "a 5m"


def test_points_that_are_no_numbers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    series = [
        {"metric": {}, "values": [[1, "NaN"], [2, "0.5"]]},
        {"metric": {}, "values": [[1, "NaN"]]},
    ]
    asked: list[dict[str, Any]] = []

    def post(url: str, data: dict[str, Any], **_: object) -> httpx.Response:
        asked.append(data)
        return httpx.Response(200, json={"status": "success", "data": {"result": series}})

    monkeypatch.setattr(httpx, "post", post)
    found = pictures.ask("http://x", 'a{b=~"$tenant"}[$__rate_interval]', 0.0, 9.0)
    assert [one["values"] for one in found] == [[[2, "0.5"]]]
    assert asked[0]["query"] == 'a{b=~".*"}[10s]'
