"""``twostroke serve --data-parallel-size 2``: one engine is killed, and a chat goes on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.server.engines.processes import started_by
from tests.server.engines.streamed_content import content_of
from tests.server.running import ServerProcess, running_process, wait_until

CHAT = {
    "model": "pilot",
    "messages": [{"role": "user", "content": "What is the KV cache?"}],
    "max_tokens": 500,  # enough to be found busy on a busy machine
    "ignore_eos": True,
    "seed": 11,
    "temperature": 0.9,
    "stream": True,
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ["--data-parallel-size", "2", "--port", "0", "--no-enable-prefix-caching"]
    flags += ["--kv-cache-memory", "128MiB"]
    with running_process("-m", "twostroke", "serve", *flags) as process:
        process.url()
        yield process
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def engines(server: ServerProcess) -> list[int]:
    """The processes that the server has started."""
    return started_by(server.process.pid, "engine_process")


def busy_engine(server: ServerProcess) -> int:
    """The rank of the engine that has a request."""
    text = httpx.get(server.url() + "/metrics").text
    found = re.search(r'vllm:num_requests_running\{engine="(\d)".*\} 1\.0', text)
    assert found is not None
    return int(found[1])


def stream(server: ServerProcess, kill_after: int | None = None) -> list[str]:
    lines: list[str] = []
    url = server.url() + "/v1/chat/completions"
    with httpx.stream("POST", url, json=CHAT, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if len(lines) == kill_after:
                # Started in the order of their ranks, and so numbered.
                os.kill(sorted(engines(server))[busy_engine(server)], signal.SIGKILL)
                kill_after = None
    assert kill_after is None, "it was over before"
    return lines


def test_a_chat_goes_on_in_the_other_engine(server: ServerProcess) -> None:
    expected = stream(server)
    assert len(engines(server)) == 2
    assert content_of(stream(server, kill_after=20)) == content_of(expected)
    assert httpx.get(server.url() + "/health").status_code == 200
    wait_until(lambda: len(engines(server)) == 2)
    assert "it is started again" in server.stderr


def test_metrics_have_the_number_of_each_engine(server: ServerProcess) -> None:
    text = httpx.get(server.url() + "/metrics").text
    for rank in (0, 1):
        assert f'vllm:num_requests_running{{engine="{rank}"' in text


def test_kv_events_are_refused_by_name(server: ServerProcess) -> None:
    answer = httpx.get(server.url() + "/v1/cache/events")
    assert answer.status_code == 400 and "--data-parallel-size" in answer.text
