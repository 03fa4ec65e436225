"""``twostroke serve --prefill-engines``: what is computed apart is written as if it were not."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.engines.processes import started_by
from tests.server.engines.streamed_content import content_of
from tests.server.running import ServerProcess, running_process, wait_until

PROMPT = "Prefill reads the whole prompt at once, and decode writes one token per pass. " * 12
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("completions", {"prompt": PROMPT, "max_tokens": 60}),
    "samples": ("completions", {"prompt": PROMPT, "n": 3, "max_tokens": 40, "logprobs": 2}),
    "one-token": ("completions", {"prompt": PROMPT, "max_tokens": 1}),
    "echo": ("completions", {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 20}),
    "short": ("completions", {"prompt": "The river", "max_tokens": 60}),
    "schema": (
        "chat/completions",
        {
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": 80,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "pair",
                    "schema": {
                        "type": "object",
                        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                        "required": ["a", "b"],
                        "additionalProperties": False,
                    },
                },
            },
        },
    ),
}
FLAGS = ["--port", "0", "--max-num-seqs", "8", "--kv-cache-memory", "64MiB"]


@pytest.fixture(scope="module")
def together() -> Iterator[ServerProcess]:
    with running_process("-m", "twostroke", "serve", *FLAGS) as process:
        process.url()
        yield process


@pytest.fixture(scope="module")
def apart() -> Iterator[ServerProcess]:
    own = ["--data-parallel-size", "2", "--prefill-engines", "1", "--prefill-min-tokens", "32"]
    with running_process("-m", "twostroke", "serve", *FLAGS, *own) as process:
        process.url()
        yield process
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def stream(server: ServerProcess, name: str, salt: str = "") -> dict[str, str]:
    """What the events of a call say."""
    route, body = CALLS[name]
    body = {"model": "pilot", "seed": 11, "temperature": 0.9, "stream": True, **body}
    if salt:
        body["cache_salt"] = salt
    with httpx.stream("POST", f"{server.url()}/v1/{route}", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        return content_of(answer.iter_lines())


def fetched_tokens(server: ServerProcess) -> int:
    metrics = httpx.get(f"{server.url()}/metrics").text
    pattern = r'^twostroke:kv_tier_hit_tokens_total\{.*tier="peer0".*\} (\S+)'
    return sum(int(float(value)) for value in re.findall(pattern, metrics, re.MULTILINE))


def engines_of(server: ServerProcess) -> list[int]:
    return started_by(server.process.pid, "engine_process")


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_the_same(together: ServerProcess, apart: ServerProcess, name: str) -> None:
    expected = stream(together, name, salt=name)
    before = fetched_tokens(apart)
    assert stream(apart, name, salt=name) == expected
    if name in ("plain", "samples", "schema"):
        assert fetched_tokens(apart) - before > 80


@pytest.mark.parametrize("which", [0, 1])
def test_while_one_kind_is_gone_the_other_does_everything(
    together: ServerProcess, apart: ServerProcess, which: int
) -> None:
    expected = stream(together, "plain")
    os.kill(engines_of(apart)[which], signal.SIGKILL)
    assert stream(apart, "plain", salt=f"gone{which}") == expected
    wait_until(lambda: len(engines_of(apart)) == 2)
    wait_until(lambda: apart.stderr.count("the engine runs again") > which)
    assert stream(apart, "plain", salt=f"back{which}") == expected


def test_a_pool_without_others_is_refused() -> None:
    with running_process("-m", "twostroke", "serve", "--prefill-engines", "1") as process:
        assert process.end(30) != 0
        assert "leaves no engine to write answers" in process.stderr
