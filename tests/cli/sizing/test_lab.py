"""Protects: ``twostroke lab`` lists claims, tries them, writes files, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.lab.registry import CLAIMS


def test_without_a_name_claims_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line[0] != " "} == {claim.name for claim in CLAIMS}


def test_a_claim_simulated_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--plot", str(tmp_path / "plot.svg"), "--html", str(tmp_path / "page.html")]
    assert run(["lab", "decode-ceiling", "--no-live", *files]) == 0
    first = capsys.readouterr().out
    assert "Verdict: holds with a condition." in first and "Measured here" not in first
    assert (tmp_path / "plot.svg").read_text().startswith("<svg xmlns")
    assert "<h1>" in (tmp_path / "page.html").read_text()
    assert run(["lab", "decode-ceiling", "--no-live"]) == 0
    assert capsys.readouterr().out == first


def test_json_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "dense-flops", "prefill-time", "--no-live", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert [claim["name"] for claim in claims] == ["dense-flops", "prefill-time"]
    assert claims[0]["verdict"] == "wrong as stated" and "live" not in claims[0]


def test_a_terminal_sees_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["dense-flops", "prefill-time"]
    assert run(["lab", *names, "--no-live", "--json"]) == 0
    plain = capsys.readouterr()
    assert plain.err == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert run(["lab", *names, "--no-live", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain.out
    assert "dense-flops" in shown.err and "0/2" in shown.err and "1/2" in shown.err


def test_measured_here_with_pilot(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "kv-arithmetic"]) == 0
    assert "Measured here, with pilot\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["decode-celing"], "did you mean decode-ceiling?"),
        (["paging", "--no-live", "--plot", "/no/such/folder/plot.svg"], "another --plot"),
        (["paging", "qqq"], "twostroke lab lists them"),
        (["--plot", "plot.svg"], "--html for several"),
        (["--json"], "--all"),
        (["paging", "--no-live", "--plot", "plot.png"], "give plot.svg"),
        (["eight-devices", "--model", "/no/such/model"], "leave out --model"),
        (["kv-arithmetic", "--model", "no-such-model"], ""),
        (["dense-flops", "--no-live", "--html", "/no/such/folder/page.html"], "another --html"),
    ],
)
def test_mistakes_are_a_line_and_a_hint(
    flags: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", *flags]) == 1
    error, blank, shown, *rest = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and not blank and not rest
    assert shown.startswith("hint: ") and hint in shown
