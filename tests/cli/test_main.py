"""The command as a process: fast help, errors as one line and a hint, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.errors import ModelLoadError

ROOT = Path(__file__).parents[2]


def twostroke(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "twostroke", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom twostroke.cli.main import run\n"
        "try: run(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'fastapi', 'uvicorn', 'transformers', 'tokenizers', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
    assert time.monotonic() - started < 2  # 0.2 s where nothing else runs


def test_help_texts_are_the_docstrings_of_the_configuration() -> None:
    output = " ".join(twostroke("serve", "--help").stdout.replace("│", " ").split())
    for expected in ("--max-num-seqs", "Most requests that run at once.", "--kv-cache-memory", "--shutdown-timeout"):
        assert expected in output


def test_usage_error() -> None:
    result = twostroke("serve", "--max-num-seqz", "3")
    assert result.returncode == 2
    assert result.stdout == ""
    first, blank, hint = result.stderr.splitlines()
    assert first == "error: unknown option: --max-num-seqz. Did you mean --max-num-seqs?"
    assert (blank, hint) == ("", "hint: twostroke serve --help shows what can be given")


def test_the_hint_names_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, command in ((["bench", "serve", "--x"], "bench serve"), (["bench", "x"], "bench"), (["x"], "")):
        assert run(arguments) == 2
        words = f"twostroke {command}".split()
        assert f"hint: {' '.join(words)} --help shows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "--port", "99999"], 2, "--port must be from 0 to 65535, got 99999"),
        (["serve", "--kv-cache-memory", "3XB"], 2, "'3XB' is not a size"),
        (["serve", "--max-num-seqs", "many"], 2, 'unable to convert "many" into int'),
        (["generate"], 2, "PROMPT requires an argument"),
        (["sreve"], 2, 'Did you mean "serve"?'),
        (["serve", "one", "--model", "two"], 1, "MODEL is one, but --model is two"),
        (["chat", "--url", "http://127.0.0.1:9", "x", "y"], 2, "y"),
        (["chat", "--url", "http://127.0.0.1:9", "--dtype", "float32"], 1, "mean nothing with --url"),
        (["chat", "--url", "http://127.0.0.1:9", "--block-size", "8"], 1, "mean nothing with --url"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.splitlines()[1] == ""
    assert captured.err.splitlines()[2].startswith("hint: ")
    assert "Traceback" not in captured.err


def test_our_errors_have_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise ModelLoadError("no weights", hint="bring some")

    monkeypatch.setattr("twostroke.cli.session.LocalSession.load", fail)
    assert run(["generate", "hello"]) == 1
    assert capsys.readouterr().err == "error: no weights\n\nhint: bring some\n"


def test_version() -> None:
    result = twostroke("--version")
    assert result.returncode == 0
    assert result.stdout.strip()
