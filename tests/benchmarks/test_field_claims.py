"""Protects: the page of the field's claims has verdicts, figures, and plots beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.claims.field import NOISY, try_claims, write_page
from benchmarks.claims.workbench import Workbench
from benchmarks.environment import OtherPrograms, environment
from tests.benchmarks.tiny import tiny_checkpoint
from twostroke.lab.registry import find_claims


def test_a_page_with_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(tiny_checkpoint(tmp_path / "model", monkeypatch))
    bench = Workbench(model, "tiny", 1, tmp_path, lambda line: None, checkpoint=model)
    claims = find_claims(["kv-arithmetic", "busy-and-slow"])
    tried = try_claims(bench, claims)
    assert tried[0].large is None and tried[1].large is not None
    where = environment("python -m benchmarks.claims field", OtherPrograms().share())
    write_page(tried, {**where, "others_cpu_share": 0.1}, tmp_path)
    assert NOISY not in (tmp_path / "field.md").read_text()
    write_page(tried, {**where, "others_cpu_share": 0.9}, tmp_path)
    page = (tmp_path / "field.md").read_text()
    assert "| [kv-arithmetic](#kv-arithmetic) | holds with a condition |" in page
    assert NOISY in page
    assert "![plot](field/busy-and-slow.svg)" in page and "Measured with tiny" in page
    assert max(map(len, page.splitlines())) <= 100
    for claim in claims:
        assert (tmp_path / "field" / f"{claim.name}.svg").read_text().startswith("<svg xmlns")
    record = json.loads((tmp_path / "field.json").read_text())
    assert [each["name"] for each in record["claims"]] == [claim.name for claim in claims]
    assert record["commit"] and record["claims"][1]["live_large"]["figures"]
