"""``twostroke serve --engine-process``: the engine is killed, and clients see no byte of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.engines.processes import started_by
from tests.server.engines.streamed_calls import chat_calls
from tests.server.engines.streamed_content import content_of
from tests.server.running import ServerProcess, running_process, wait_until

AGAIN = "the engine runs again"
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "samples": ("completions", {"prompt": "The river", "n": 3, "max_tokens": 120, "logprobs": 2}),
    "responses": ("responses", {"input": "What is a token?", "max_output_tokens": 120}),
    **{kind: ("chat/completions", body) for kind, body in chat_calls(max_tokens=120).items()},
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-process") / "steps.jsonl"


@pytest.fixture(scope="module")
def server(recording: Path) -> Iterator[ServerProcess]:
    flags = ["--engine-process", "--port", "0", "--no-enable-prefix-caching", "--max-num-seqs", "8"]
    flags += ["--kv-cache-memory", "64MiB", "--record", str(recording)]
    with running_process("-m", "twostroke", "serve", *flags) as process:
        process.url()
        yield process
        engine = engine_of(process)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
        assert not Path(f"/proc/{engine}").exists()


def engine_of(server: ServerProcess) -> int:
    """The id of the one process that the server has started."""
    (pid,) = started_by(server.process.pid, "engine_process")
    return pid


def is_well(server: ServerProcess) -> bool:
    return httpx.get(server.url() + "/health").status_code == 200


def stream(server: ServerProcess, name: str, kill_after: int | None = None) -> list[str]:
    """The events of a call; the engine is killed after some of them."""
    route, body = CALLS[name]
    body = {"model": "pilot", "seed": 11, "temperature": 0.9, "stream": True, **body}
    lines: list[str] = []
    url = f"{server.url()}/v1/{route}"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if len(lines) == kill_after:
                os.kill(engine_of(server), signal.SIGKILL)
                kill_after = None
    assert kill_after is None, "it was over before"
    return lines


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_goes_on_with_the_same_bytes(server: ServerProcess, name: str) -> None:
    expected = stream(server, name)
    assert len(expected) > 8
    num_starts = server.stderr.count(AGAIN)
    killed = stream(server, name, kill_after=len(expected) // 3)
    assert content_of(killed) == content_of(expected)
    # The answer may have been through before its engine was missed.
    wait_until(lambda: server.stderr.count(AGAIN) > num_starts and is_well(server))


def test_health_tells_and_new_requests_get_a_503_meanwhile(server: ServerProcess) -> None:
    os.kill(engine_of(server), signal.SIGKILL)
    wait_until(lambda: not is_well(server), 5)
    assert "SIGKILL" in httpx.get(server.url() + "/health").text
    answer = httpx.post(server.url() + "/v1/completions", json={"model": "pilot", "prompt": "a"})
    assert answer.status_code == 503 and "SIGKILL" in answer.text
    assert httpx.get(server.url() + "/metrics").status_code == 200
    wait_until(lambda: is_well(server))
    assert AGAIN in server.stderr


def test_the_recording_goes_on(server: ServerProcess, recording: Path) -> None:
    records = [json.loads(line) for line in recording.read_text().splitlines()]
    steps = [record["step"] for record in records if "step" in record]
    assert steps == list(range(len(steps)))
    assert any("call" in record for record in records)


def test_what_needs_the_engine_here_is_refused_by_name() -> None:
    with running_process(
        "-m", "twostroke", "serve", "--engine-process", "--inspect-content"
    ) as process:
        assert process.end(30) != 0
        assert "--inspect-content needs the engine in the server's process" in process.stderr
