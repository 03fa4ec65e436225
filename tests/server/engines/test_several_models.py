"""``twostroke serve a=MODEL b=MODEL``: each answers to its own name, in every dialect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.engines.processes import started_by
from tests.server.running import ServerProcess, running_process, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ["--port", "0", "--max-num-seqs", "4", "--kv-cache-memory", "96MiB"]
    flags += ["--kv-cache-share", "big=2", "--idle-unload", "4"]
    arguments = ["-m", "twostroke", "serve", "small=pilot-draft", "big=pilot", *flags]
    with running_process(*arguments) as process:
        process.url()
        yield process
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


def num_engines(server: ServerProcess) -> int:
    return len(started_by(server.process.pid, "engine_process"))


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url() + path, json=body, timeout=60)


def completion(server: ServerProcess, **body: Any) -> dict[str, Any]:
    fields = {"prompt": "The river", "max_tokens": 8, "temperature": 0, **body}
    answer: dict[str, Any] = post(server, "/v1/completions", **fields).raise_for_status().json()
    return answer


def test_requests_reach_the_model_that_they_name(server: ServerProcess) -> None:
    answers = {name: completion(server, model=name) for name in ("small", "big")}
    assert [answer["model"] for answer in answers.values()] == ["small", "big"]
    texts = [answer["choices"][0]["text"] for answer in answers.values()]
    assert texts[0] != texts[1], "they are different models"
    refused = post(server, "/v1/completions", model="none", prompt="a")
    assert refused.status_code == 404 and "small, big" in refused.text


@pytest.mark.parametrize("name", ["small", "big"])
def test_every_dialect_knows_them(server: ServerProcess, name: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for path, model, body in (
        ("/v1/chat/completions", name, {"messages": messages, "max_tokens": 3}),
        ("/v1/responses", name, {"input": "Hi", "max_output_tokens": 3}),
        ("/v1/messages", name, {"messages": messages, "max_tokens": 3}),
        ("/api/chat", f"{name}:latest", {"messages": messages, "stream": False}),
        ("/api/generate", name, {"prompt": "Hi", "stream": False}),
    ):
        answer = post(server, path, model=model, **body).raise_for_status().json()
        assert answer["model"] == model, path
    assert post(server, "/tokenize", model=name, prompt="a b").json()["count"] > 0


def test_lists_and_metrics_have_both(server: ServerProcess) -> None:
    url = server.url()
    listed = httpx.get(url + "/v1/models").json()["data"]
    assert [card["id"] for card in listed] == ["small", "big"]
    assert httpx.get(url + "/v1/models/big").json()["root"] == "big"
    tags = httpx.get(url + "/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == ["small:latest", "big:latest"]
    completion(server, model="big")
    completion(server, model="small")
    lines = httpx.get(url + "/metrics").text.splitlines()
    for name, memory in (("small", 32 << 20), ("big", 64 << 20)):
        own = [line for line in lines if f'model_name="{name}"' in line]
        (config,) = (line for line in own if line.startswith("vllm:cache_config_info"))
        assert f'kv_cache_memory_bytes="{memory}"' in config, "by the declared parts"
        assert any(line.startswith("vllm:generation_tokens_total") for line in own)
    assert "beside it  big on cpu" in server.stderr


def test_a_model_without_requests_leaves_memory_and_comes_back(server: ServerProcess) -> None:
    expected = completion(server, model="big")["choices"]
    wait_until(lambda: num_engines(server) == 0)
    assert httpx.get(server.url() + "/health").status_code == 200
    assert httpx.get(server.url() + "/v1/models").status_code == 200
    asleep = httpx.get(server.url() + "/v1/cache", params={"model": "big"})
    assert asleep.status_code >= 500 and "no request came" in asleep.text
    assert completion(server, model="big")["choices"] == expected
    assert num_engines(server) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pilot", "big=pilot"], "'pilot' is no model with a name"),
        (["a=pilot", "a=pilot"], "two models are called a"),
        (["a=pilot", "b=pilot", "--kv-cache-share", "c=2"], "the models are a, b"),
        (["a=pilot", "--served-model-name", "x"], "--served-model-name another"),
        (["pilot", "--idle-unload", "5"], "--engine-process"),
        (["a=pilot", "b=nowhere/at-all-x.gguf"], "nowhere/at-all-x.gguf: "),
        (["a=pilot-draft", "a:latest=pilot-draft"], "the name of two models"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(arguments: list[str], message: str) -> None:
    with running_process("-m", "twostroke", "serve", *arguments) as process:
        assert process.end(60) != 0
        assert message in process.stderr
