"""Protects: every example runs in its own process, as a user would run it.

Where the embedded model has not been built, a tiny random checkpoint takes its place: the paths are
the same.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.make_checkpoint import write_tokenizer
from tests.checkpoints import tiny_config, write_checkpoint
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.model_files import resolve_model

EXAMPLES = Path(__file__).parent.parent / "examples"
SECONDS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        resolve_model("pilot")
        return "pilot"
    except ModelLoadError:
        folder = tmp_path_factory.mktemp("models") / "tiny"
        raw = tiny_config("llama", vocab_size=300, eos_token_id=257, max_position_embeddings=512)
        write_checkpoint(folder, raw)
        write_tokenizer(raw["vocab_size"], folder)
        return str(folder)


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``twostroke serve`` on a free port; it must also end well when told to."""
    log = tmp_path_factory.mktemp("server") / "stderr.txt"
    command = [
        sys.executable,
        "-m",
        "twostroke",
        "serve",
        model,
        "--port",
        "0",
        "--kv-cache-memory",
        "64MiB",
    ]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr) as process,
    ):
        try:
            yield wait_for_url(process, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=SECONDS) == 0, log.read_text()
        finally:
            process.kill()


def wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[0]


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    tested = {"offline.py", "stream_openai.py", "async_engine.py", "record_steps.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_offline(model: str) -> None:
    output = run_example("offline.py", "--model", model, "--max-tokens", "6")
    assert "'Prefill is' goes on with" in output and "ended by" in output
    assert sum(line.startswith("- ") for line in output.splitlines()) == 3


def test_stream_openai(server: str) -> None:
    output = run_example("stream_openai.py", server, "--max-tokens", "6")
    assert re.search(r"\(\d+ tokens in, [1-6] out, from .+\)", output)


def test_async_engine(model: str) -> None:
    output = run_example("async_engine.py", "--model", model, "--max-tokens", "6")
    assert "first: finished with 6 tokens" in output and "second: finished with 6 tokens" in output
    assert "third: aborted after 3 tokens" in output


def test_record_steps(model: str, tmp_path: Path) -> None:
    trace = tmp_path / "steps.json"
    output = run_example(
        "record_steps.py", "--model", model, "--max-tokens", "4", "--trace", str(trace)
    )
    assert "llm-1[0:" in output and "max_num_seqs" in output
    names = {record["name"] for record in json.loads(trace.read_text())["traceEvents"]}
    assert "decode" in names and any(name.startswith("prefill [") for name in names)
