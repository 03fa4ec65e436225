"""Protects: ``twostroke inspect`` and ``simulate --inspect`` say what is wrong, then serve."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.inspector.fleets import fleet_recording
from tests.inspector.recorded import recording
from twostroke.cli.main import run


def test_a_bad_file_is_an_error_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "note.txt"
    path.write_text("no steps\n")
    assert run(["inspect", str(path)]) == 1
    shown = capsys.readouterr()
    assert "line 1: no step event" in shown.err
    assert "hint: give a file that was written with --record" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--replicas", "65"], "--inspect shows 64 replicas at most, not 65"),
        (["--sweep", "rate=1:4"], "--inspect is of one run, not of a sweep"),
        (["--autoscale", "kv"], "--inspect watches equal replicas that stay, and --autoscale"),
        (
            ["--sweep", "autoscale=kv"],
            "--inspect watches equal replicas that stay, and --autoscale",
        ),
    ],
)
def test_a_simulation_that_is_not_one_run_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "llama-3.1-8b", "--gpu", "h100", "--num-requests", "2"]
    assert run([*command, "--inspect", *flags]) == 1
    assert message in capsys.readouterr().err


def test_the_address_on_stdout_is_the_page() -> None:
    command = [sys.executable, "-m", "twostroke", "inspect", str(recording())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/inspect/", address)
            assert "twostroke inspector" in httpx.get(address).text
            told = httpx.get(address.replace("/inspect/", "/v1/inspect")).json()
            assert (told["kind"], told["name"]) == ("recording", recording().name)
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", str(fleet_recording())],
        ["simulate", "--num-requests", "20", "--rate", "9", "--replicas", "3", "--inspect"],
    ],
)
def test_several_replicas_have_one_page(command: list[str]) -> None:
    command = [sys.executable, "-m", "twostroke", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(line.strip() for line in lines if "/inspect/" in line)
            facts = httpx.get(address.replace("/inspect/", "/v1/inspect/fleet")).json()
            assert len(facts["replicas"]) == 3
            for root in ("", "/replicas/1"):
                report = httpx.get(address.replace("/inspect/", f"{root}/v1/inspect/report"))
                if command[3] == "inspect":
                    assert report.status_code == 404
                else:
                    assert [run["completed"] for run in report.json()["runs"]] == [20]
        finally:
            process.terminate()
