"""The command as a process: fast help, errors as one line and a hint, exit codes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.cli.main import build_app, run
from twostroke.cli.session import LocalSession
from twostroke.core.errors import ModelLoadError

ROOT = Path(__file__).parents[2]


def twostroke(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "twostroke", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=60
    )


def children_cpu_seconds() -> float:
    """CPU time of the processes that have ended: what else runs on the machine does not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom twostroke.cli.main import run\ntry: run(['--help'])\nexcept SystemExit:"
        " pass\nheavy = {'torch', 'fastapi', 'uvicorn', 'transformers', 'tokenizers', 'httpx'} &"
        " set(sys.modules)\nassert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    before = children_cpu_seconds()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
    assert children_cpu_seconds() - before < 1.5  # 0.3 s on the development machine


def test_help_texts_are_the_docstrings_of_the_configuration() -> None:
    output = " ".join(twostroke("serve", "--help").stdout.replace("│", " ").split())
    for expected in (
        "--max-num-seqs",
        "Most requests that run at once.",
        "--kv-cache-memory",
        "--shutdown-timeout",
    ):
        assert expected in output
    assert "[MODEL]" in output
    assert "--kv-cache-memory SIZE" in output
    assert "--max-body-size SIZE" in output
    assert "default: ()" not in output


@pytest.mark.parametrize("columns", [60, 120])
def test_help_texts_fill_the_lines_of_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a docstring breaks its lines does not show, neither in flags nor above them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        build_app()(["bench", "serve", "--help"])
    output = capsys.readouterr().out
    words = re.sub(r"[\s│]+", " ", output)
    assert "sharegpt-like: those of chats (lognormal); trace: lengths and times of" in words
    longest = max(map(len, output.partition("╭")[0].splitlines()))
    assert columns - 15 < longest <= columns


def test_usage_error() -> None:
    result = twostroke("serve", "--max-num-seqz", "3")
    assert result.returncode == 2
    assert result.stdout == ""
    first, blank, hint = result.stderr.splitlines()
    assert first == "error: unknown option: --max-num-seqz. Did you mean --max-num-seqs?"
    assert (blank, hint) == ("", "hint: twostroke serve --help shows what can be given")


def test_the_hint_names_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, command in (
        (["bench", "serve", "--x"], "bench serve"),
        (["bench", "x"], "bench"),
        (["x"], ""),
    ):
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
        (
            ["chat", "--url", "http://127.0.0.1:9", "--dtype", "float32"],
            1,
            "mean nothing with --url",
        ),
        (
            ["generate", "--url", "http://127.0.0.1:9", "--dtype", "float32", "x"],
            1,
            "mean nothing with --url",
        ),
        (["generate", "h\udcff"], 1, "the input is not valid UTF-8"),
        (
            ["chat", "--url", "http://127.0.0.1:9", "--block-size", "8"],
            1,
            "mean nothing with --url",
        ),
    ],
)
def test_exit_codes(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.splitlines()[1] == ""
    assert captured.err.splitlines()[2].startswith("hint: ")
    assert "Traceback" not in captured.err


def test_an_unknown_command_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["benhc"]) == 2
    assert capsys.readouterr().err == (
        'error: unknown command "benhc". Did you mean "bench"?\n\n'
        "hint: twostroke --help shows what can be given\n"
    )


def test_a_value_that_the_engine_refuses_leads_to_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "twostroke.cli.session.LocalSession.load",
        lambda *_: LocalSession(ScriptedEngine().loaded_model()),
    )
    assert run(["generate", "hello", "--top-p", "3"]) == 1
    assert capsys.readouterr().err == (
        "error: top_p must be in (0, 1], got 3.0\n\n"
        "hint: twostroke generate --help shows what can be given\n"
    )


def test_our_errors_have_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ModelLoadError("no weights", hint="bring some")

    monkeypatch.setattr("twostroke.cli.session.LocalSession.load", fail)
    assert run(["generate", "hello"]) == 1
    assert capsys.readouterr().err == "error: no weights\n\nhint: bring some\n"


def test_interrupt_ends_generate_cleanly() -> None:
    command = [
        sys.executable,
        "-m",
        "twostroke",
        "generate",
        "hello",
        "--ignore-eos",
        "--kv-cache-memory",
        "64MiB",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1)  # the engine's thread is inside torch from here on
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b""


@pytest.mark.parametrize("command", [["chat"], ["generate", "-"]])
def test_failures_without_a_person_have_an_exit_code(command: list[str]) -> None:
    full = [sys.executable, "-m", "twostroke", *command, "--url", "http://127.0.0.1:1"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONIOENCODING": "utf-8:strict",
    }
    for given, message in (
        (b"hi\n", b"error: cannot reach"),
        (b"h\xff\n", b"error: the input is not valid UTF-8"),
    ):
        result = subprocess.run(
            full, check=False, input=given, capture_output=True, env=environment, timeout=60
        )
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr.startswith(message)


def test_generate_asks_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(ScriptedEngine()) as url:
        capsys.readouterr()
        assert (
            run(["generate", "--url", url, "--temperature", "0", "--max-tokens", "3", "the dog"])
            == 0
        )
    assert capsys.readouterr() == ("the quick brown \n", "")


def test_generate_asks_for_a_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    engine = ScriptedEngine()
    with running_server(engine) as url:
        base = ["generate", "--url", url, "the dog"]
        assert run([*base, "--schema", str(tmp_path / "schema.json")]) == 0
        assert run([*base, "--regex", "[ab]+"]) == 0
        assert run([*base, "--choice", "yes", "--choice", "no"]) == 0
        capsys.readouterr()
        assert run([*base, "--regex", "("]) == 1
    assert "regex" in capsys.readouterr().err
    forms = [request.params.structured_outputs for request in engine.submitted]
    assert forms[0] is not None and json.loads(str(forms[0].json)) == schema
    assert forms[1] is not None and forms[1].regex == "[ab]+"
    assert forms[2] is not None and forms[2].choice == ("yes", "no")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--regex", "a", "--choice", "b"], "--schema, --regex and --choice exclude one another"),
        (["--schema", "nothing.json"], "cannot read the schema nothing.json: No such file"),
        (["--schema", __file__], "cannot read the schema"),
    ],
)
def test_forms_that_cannot_be_read_are_refused_before_anything_is_loaded(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "hello", *flags]) == 1
    assert message in capsys.readouterr().err


def test_version() -> None:
    result = twostroke("--version")
    assert result.returncode == 0
    assert result.stdout.strip()
