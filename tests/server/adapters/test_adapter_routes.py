"""Adapters over HTTP: each API's ``model`` names one, admins load and unload them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file

from tests.runtime.adapters.peft_files import adapter_config, adapter_tensors, write_adapter
from tests.server.running import running_server
from tests.server.tiny import checkpoint, tiny_engine
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.keys import key_line
from twostroke.gateway.options import GatewayOptions

PROMPT = list(range(5, 25))
USER = [{"role": "user", "content": "the dog"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = load_file(checkpoint() / "model.safetensors")
    path = tmp_path_factory.mktemp("lora")
    return write_adapter(path, adapter_config(), adapter_tensors(tensors))


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keys ``alice`` and the admin's ``root``, each its name twice; one adapter is there."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    lines = [key_line(name, name * 2, admin=name == "root") for name in ("alice", "root")]
    file.write_text("\n".join(lines))
    gateway = Gateway(GatewayOptions(api_key_file=str(file)))
    adapters = LoraConfig(lora=(f"own/sql={folder}",), enable_lora=True)
    with tiny_engine(adapters=adapters) as engine, running_server(engine, gateway=gateway) as url:
        yield url


def call(
    url: str, path: str, body: dict[str, Any] | None = None, key: str = "root"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key * 2}"}
    if body is None:
        return httpx.get(url + path, headers=headers, timeout=30)
    return httpx.post(url + path, json=body, headers=headers, timeout=30)


def complete(url: str, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answer = call(url, "/v1/completions", body | {"ignore_eos": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_lists_name_the_adapter_and_its_parent(url: str) -> None:
    base, own = call(url, "/v1/models").json()["data"]
    assert (own["id"], own["root"], own["parent"]) == ("own/sql", "own/sql", base["id"])
    assert base["parent"] is None
    assert call(url, "/v1/models/own/sql").json() == own
    anthropic = httpx.get(
        url + "/v1/models",
        headers={"x-api-key": "rootroot", "anthropic-version": "2023-06-01"},
    )
    assert [one["id"] for one in anthropic.json()["data"]] == [base["id"], "own/sql"]
    tags = [one["name"] for one in call(url, "/api/tags").json()["models"]]
    assert "own/sql:latest" in tags


def test_every_api_answers_with_the_adapter_that_model_names(url: str) -> None:
    base = call(url, "/v1/models").json()["data"][0]["id"]
    assert complete(url, base) != complete(url, "own/sql")
    asked = {"messages": USER, "max_tokens": 12, "temperature": 0}

    def texts(path: str, body: dict[str, Any], *steps: Any) -> list[Any]:
        got = []
        for name in (base, "own/sql"):
            answer = call(url, path, {"model": name, **body})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
            value = answer.json()
            for step in steps:
                value = value[step]
            got.append(value)
        return got

    ways = [
        texts("/v1/chat/completions", asked, "choices", 0, "message", "content"),
        texts("/v1/messages", asked, "content"),
        texts(
            "/v1/responses",
            {"input": "the dog", "max_output_tokens": 12, "temperature": 0},
            *("output", 0, "content", 0, "text"),
        ),
        texts(
            "/api/chat",
            {"messages": USER, "stream": False, "options": {"temperature": 0, "num_predict": 12}},
            *("message", "content"),
        ),
        texts(
            "/api/generate",
            {
                "prompt": "the dog",
                "raw": True,
                "stream": False,
                "options": {"temperature": 0, "num_predict": 12},
            },
            "response",
        ),
    ]
    for without, own in ways:
        assert without != own


def test_what_adapters_do_not_do_is_refused(url: str) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "the dog"}),
        ("/v1/cache/prefixes", {"tokens": PROMPT}),
    ):
        answer = call(url, path, {"model": "own/sql", **body})
        assert answer.status_code == 400, answer.text
        assert "is an adapter" in answer.json()["error"]["message"]
    assert call(url, "/v1/completions", {"model": "none", "prompt": "a"}).status_code == 404


def test_admins_load_and_unload(url: str, folder: Path) -> None:
    body = {"lora_name": "later", "lora_path": str(folder)}
    assert call(url, "/v1/load_lora_adapter", body, key="alice").status_code == 403
    answer = call(url, "/v1/load_lora_adapter", body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["id"], answer.json()["rank"]) == ("later", 4)
    assert complete(url, "later") == complete(url, "own/sql")
    again = call(url, "/v1/load_lora_adapter", body)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    gone = {"lora_name": "later"}
    assert call(url, "/v1/unload_lora_adapter", gone, key="alice").status_code == 403
    assert call(url, "/v1/unload_lora_adapter", gone).json()["status"] == "unloaded"
    assert call(url, "/v1/completions", {"model": "later", "prompt": "a"}).status_code == 404
    assert call(url, "/v1/unload_lora_adapter", gone).status_code == 400


def test_what_cannot_be_loaded_says_why(url: str, tmp_path: Path) -> None:
    body = {"lora_name": "x", "lora_path": str(tmp_path)}
    answer = call(url, "/v1/load_lora_adapter", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "lora_path"
    assert "adapter_config.json" in answer.json()["error"]["message"]
    base = call(url, "/v1/models").json()["data"][0]["id"]
    taken = call(url, "/v1/load_lora_adapter", {"lora_name": base, "lora_path": "x"})
    assert "is called" in taken.json()["error"]["message"]


def test_without_the_flag_nothing_is_loaded(folder: Path) -> None:
    with tiny_engine() as engine, running_server(engine) as url:
        body = {"lora_name": "x", "lora_path": str(folder)}
        answer = call(url, "/v1/load_lora_adapter", body)
        assert answer.status_code == 400
        assert "--enable-lora" in answer.text
