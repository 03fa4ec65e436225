"""Protects: ``twostroke batch``, interrupted, killed and resumed; with a server; refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.cli.main import run
from twostroke.core.errors import EngineDeadError

ROOT = Path(__file__).parents[2]
# Of the run that is stopped twice: long enough to be stopped, short enough to be waited for.
REQUESTS, TOKENS = 30, 30
TEXT = "the quick brown fox"


def chat_line(name: str, content: str = "the dog", **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def text_line(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "the dog", **fields},
    }


def write(path: Path, lines: Sequence[dict[str, Any] | str]) -> str:
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return str(path)


def read(path: Path) -> dict[str | None, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    outputs = {line["custom_id"]: line for line in lines}
    assert len(outputs) == len(lines), "a request was answered twice"
    return outputs


def text_in(output: dict[str, Any]) -> str:
    choice = output["response"]["body"]["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Takes the place of the model that would be loaded."""
    scripted = ScriptedEngine()
    monkeypatch.setattr("twostroke.start_serving.start_async_engine", lambda _: scripted)
    return scripted


def test_good_and_bad_lines(
    tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[dict[str, Any] | str] = [
        chat_line("chat", model="pilot"),
        text_line("text", n=2),
        "{",
        chat_line("field", foo=1),
        chat_line("long", "x " * 99),
        chat_line("model", model="gpt"),
        chat_line("stream", stream=True),
        {**text_line("url"), "url": "/v1/models"},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert run(["batch", source, "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out.strip() == ""
    assert "8 requests: 2 answered, 6 failed; " in captured.err and captured.err.strip().endswith(
        f"written to {out}"
    )
    assert engine.closed
    outputs = read(out)
    assert (
        text_in(outputs["chat"]) == TEXT
        and len(outputs["text"]["response"]["body"]["choices"]) == 2
    )
    assert outputs["chat"]["response"]["request_id"] == outputs["chat"]["response"]["body"]["id"]
    for name, status, param in (
        ("field", 400, "foo"),
        ("long", 400, "messages"),
        ("model", 404, "model"),
    ):
        response = outputs[name]["response"]
        assert (response["status_code"], response["body"]["error"]["param"]) == (status, param)
        assert outputs[name]["error"] is None
    for key, number in ((None, 3), ("stream", 7), ("url", 8)):
        assert outputs[key]["response"] is None
        assert (outputs[key]["error"]["code"], outputs[key]["error"]["line"]) == (
            "invalid_line",
            number,
        )


def test_again_does_nothing_and_retry_failed_does_the_failed(
    tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = (
        write(tmp_path / "in.jsonl", [text_line("a"), text_line("b", foo=1), "{"]),
        tmp_path / "out.jsonl",
    )
    arguments = ["batch", source, "-o", str(out)]
    assert run(arguments) == 1
    before = out.read_bytes()
    assert run(arguments) == 1
    assert out.read_bytes() == before and len(engine.submitted) == 1
    assert "1 answered, 2 failed; 3 done before" in capsys.readouterr().err
    assert run([*arguments, "--retry-failed"]) == 1
    assert len(read(out)) == 3 and len(engine.submitted) == 1
    write(tmp_path / "in.jsonl", [text_line("a"), text_line("b"), text_line("c")])
    assert run(arguments) == 0
    assert {key for key, output in read(out).items() if output["response"]} == {"a", "b", "c"}
    assert "also holds 1 answers to other requests" in capsys.readouterr().err
    assert run([*arguments, "--overwrite"]) == 0
    assert len(read(out)) == 3 and len(engine.submitted) == 6


@pytest.mark.parametrize(
    ("lines", "flags", "message"),
    [
        (
            [text_line("a"), text_line("b"), text_line("a")],
            [],
            "lines 1 and 3 have the same custom_id, 'a'",
        ),
        ([], [], "holds no requests"),
        ([text_line("a")], ["--max-concurrency", "0"], "--max-concurrency must be at least 1"),
        ([text_line("a")], ["--url", "http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9"),
        ([text_line("a")], ["--url", "nowhere"], "nowhere is no URL"),
        (
            [text_line("a")],
            ["--url", "http://127.0.0.1:9", "--dtype", "float32"],
            "mean nothing with --url",
        ),
        (
            [text_line("a")],
            ["--url", "http://127.0.0.1:9", "--served-model-name", "x"],
            "mean nothing with --url",
        ),
    ],
)
def test_what_is_refused_before_it_begins(
    tmp_path: Path,
    lines: list[Any],
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = write(tmp_path / "in.jsonl", lines)
    assert run(["batch", source, "-o", str(tmp_path / "out.jsonl"), *flags]) in (1, 2)
    errors = capsys.readouterr().err
    assert message in errors and "\n\nhint: " in errors and "stopped" not in errors


def test_files_that_cannot_be(
    tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(tmp_path / "in.jsonl", [text_line("a")]), tmp_path / "out.jsonl"
    assert run(["batch", source, "-o", source]) == 1
    assert run(["batch", str(tmp_path / "none"), "-o", str(out)]) == 1
    assert run(["batch", source, "-o", str(tmp_path / "none" / "out")]) == 1
    errors = capsys.readouterr().err
    assert all(
        message in errors for message in ("is input and output", "cannot read", "cannot write")
    )
    assert run(["batch", source, "-o", str(out)]) == 0
    write(tmp_path / "in.jsonl", [text_line("a", seed=3)])
    assert run(["batch", source, "-o", str(out)]) == 1
    assert "answers another request under the custom_id 'a'" in capsys.readouterr().err


def test_an_engine_that_dies_ends_the_run(
    tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = Script(refuse=EngineDeadError("no more"))
    source = write(tmp_path / "in.jsonl", [text_line("a"), text_line("b")])
    assert run(["batch", source, "-o", str(tmp_path / "out.jsonl")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(
        "stopped: 0 of 2 requests are done; run the same command again to go on\n"
    )
    assert "the server answers 503: no more" in errors
    assert engine.closed and read(tmp_path / "out.jsonl") == {}


def test_with_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = (
        write(tmp_path / "in.jsonl", [chat_line("a"), text_line("b", foo=1)]),
        tmp_path / "out.jsonl",
    )
    with running_server(ScriptedEngine()) as url:
        assert run(["run-batch", "-i", source, "-o", str(out), "--url", url + "/v1"]) == 1
    outputs = read(out)
    assert text_in(outputs["a"]) == TEXT
    assert outputs["b"]["response"]["body"]["error"]["param"] == "foo"
    assert "2 requests: 1 answered, 1 failed; " in capsys.readouterr().err


def test_a_duplicate_custom_id_sends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad lines count, too, and the output file is not even made."""
    engine, out = ScriptedEngine(), tmp_path / "out.jsonl"
    lines: list[dict[str, Any] | str] = [text_line("b"), text_line("a"), ""]
    lines += [{**text_line("\u0062"), "url": "/nowhere"}]
    source = write(tmp_path / "in.jsonl", lines)
    with running_server(engine) as url:
        assert run(["batch", source, "-o", str(out), "--url", url]) == 1
    assert "lines 1 and 4 have the same custom_id, 'b'" in capsys.readouterr().err
    assert not engine.submitted and not out.exists()


def test_a_server_that_takes_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.01))
    source, out = write(tmp_path / "in.jsonl", [text_line("a")]), tmp_path / "out.jsonl"
    with running_server(engine) as url:
        command = ["batch", source, "-o", str(out), "--url", url, "--request-timeout"]
        assert run([*command, "0.3"]) == 1
        wait_until(lambda: len(engine.aborted) == 1)
    error = read(out)["a"]["error"]
    assert (error["code"], error["message"]) == ("timeout", "no whole answer within 0.3 s")
    assert run([*command, "0"]) != 0
    assert "--request-timeout must be more than 0" in capsys.readouterr().err


class Batch:
    """The command in a process of its own, with the embedded model."""

    def __init__(self, source: str, out: Path, *flags: str) -> None:
        command = [
            sys.executable,
            "-m",
            "twostroke",
            "batch",
            source,
            "-o",
            str(out),
            "--kv-cache-memory",
            "64MiB",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        # float32, so that an answer does not depend on what shares its steps.
        self.process = subprocess.Popen(
            [*command, "--dtype", "float32", *flags],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._out = out

    def signal_after(self, lines: int, number: signal.Signals) -> tuple[int, str]:
        """Its exit code and its errors, after a signal behind so many answers."""
        try:
            wait_until(
                lambda: self._out.exists() and self._out.read_bytes().count(b"\n") >= lines, 60
            )
            self.process.send_signal(number)
            return self.wait()
        finally:
            self.process.kill()

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


def test_interrupted_killed_and_resumed(tmp_path: Path) -> None:
    """Every request is answered once, whole, and as it would have been in one run."""
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    last = REQUESTS - 1
    lines = [
        chat_line(
            f"r{i:02}", "What is a KV cache?" if i in (0, last) else f"Count to {i}.", **fields
        )
        for i in range(REQUESTS)
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    code, errors = Batch(source, out, "--max-concurrency", "1").signal_after(2, signal.SIGINT)
    assert code == 130
    interrupted = read(out)
    assert errors == (
        f"stopped: {len(interrupted)} of {REQUESTS} requests are done; run the same command again"
        " to go on\n"
    )
    assert 2 <= len(interrupted) < REQUESTS

    code, _ = Batch(source, out, "--max-concurrency", "1").signal_after(
        len(interrupted) + 2, signal.SIGKILL
    )
    assert code == -signal.SIGKILL
    whole = out.read_bytes()[: out.read_bytes().rindex(b"\n") + 1]
    killed = [json.loads(line)["custom_id"] for line in whole.splitlines()]
    # The half line that a crash can leave.
    out.write_bytes(whole + whole[: whole.index(b"\n") // 2])

    code, errors = Batch(source, out).wait()
    assert code == 0
    assert f"{REQUESTS} requests: {REQUESTS} answered, 0 failed; " in errors
    assert f"{len(killed)} done before; " in errors
    assert out.read_bytes().startswith(whole)
    outputs = read(out)
    assert sorted(map(str, outputs)) == [line["custom_id"] for line in lines]
    assert all(
        output["response"]["body"]["usage"]["completion_tokens"] == TOKENS
        for output in outputs.values()
    )
    assert text_in(outputs["r00"]) == text_in(outputs[f"r{last}"])
    assert "r00" in interrupted and f"r{last}" not in killed
