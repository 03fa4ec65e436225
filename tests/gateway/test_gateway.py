"""Keys and limits over a real server on loopback, as the official client sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.http_calls import USER
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import ConfigError
from twostroke.gateway.gateway import Gateway, GatewayMiddleware
from twostroke.gateway.keys import key_line, new_key
from twostroke.gateway.options import GatewayOptions
from twostroke.server.http.errors import error_response

KEY = "sk-secret"
ROUTES = [
    "/v1/models",
    "/v1/models/scripted",
    "/metrics",
    "/version",
    "/chat/completions",
    "/completions",
    "/models",
    "/load",
    "/tokenizer_info",
    "/docs",
    "/openapi.json",
    "/nothing",
    "/",
    "//health",
]


@contextmanager
def guarded(engine: ScriptedEngine | None = None, **options: Any) -> Iterator[str]:
    gateway = Gateway(GatewayOptions(**{"api_key": (KEY,), **options}))
    with running_server(engine or ScriptedEngine(), gateway=gateway) as url:
        yield url


def client(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


def bearer(key: str = KEY) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_right_key_opens_the_wrong_one_does_not() -> None:
    engine = ScriptedEngine()
    with guarded(engine) as url:
        with client(url) as api:
            answer = api.chat.completions.create(model="scripted", messages=USER)
            assert answer.choices[0].message.content == "the quick brown fox"
        with client(url, "sk-wrong") as api, pytest.raises(openai.AuthenticationError) as caught:
            api.chat.completions.create(model="scripted", messages=USER)
        assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
        assert "sk-wrong" not in caught.value.message
    assert len(engine.submitted) == 1


def test_a_key_may_come_in_a_header_of_its_own() -> None:
    """As Anthropic's and Azure's clients send it; ``Authorization``, if there, decides."""
    with guarded() as url:
        for headers, status in (
            ({"X-Api-Key": KEY}, 200),
            ({"X-Api-Key": "sk-wrong"}, 401),
            ({"X-Api-Key": ""}, 401),
            ({"X-Api-Key": KEY, **bearer("sk-wrong")}, 401),
            ({"X-Api-Key": "sk-wrong", **bearer()}, 200),
        ):
            assert httpx.get(url + "/v1/models", headers=headers).status_code == status


def test_a_proxys_path_opens_nothing() -> None:
    gateway = Gateway(GatewayOptions(api_key=(KEY,)))
    with running_server(ScriptedEngine(), gateway=gateway, root_path="/llm") as url:
        for path, status in (("/llm/health", 200), ("/llm/v1/models", 401), ("/v1/models", 401)):
            assert httpx.get(url + path).status_code == status
            assert httpx.get(url + path, headers=bearer()).status_code == 200


def test_a_missing_key_is_a_401_in_openais_shape() -> None:
    with guarded() as url:
        response = httpx.post(url + "/v1/completions", json={"prompt": "x"})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("invalid_request_error", "missing_api_key")


def test_everything_is_guarded_but_health() -> None:
    """Also the documentation, unknown paths, and other methods."""
    with guarded() as url:
        for route in ROUTES:
            assert httpx.get(url + route).status_code == 401, route
            assert httpx.get(url + route, headers=bearer()).status_code != 401, route
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert httpx.request(method, url + "/v1/models").status_code == 401, method
        assert httpx.get(url + "/health").json() == {"status": "ok"}
        assert httpx.head(url + "/health").status_code == 200


def test_metrics_can_be_left_open() -> None:
    with guarded(metrics_without_key=True) as url:
        assert httpx.get(url + "/metrics").status_code == 200
        assert httpx.get(url + "/v1/models").status_code == 401


def test_a_revoked_key_is_a_403(tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    (tmp_path / "keys").write_text(f"{key_line('alice', old)}:revoked\n{key_line('alice', new)}\n")
    with guarded(api_key=(), api_key_file=str(tmp_path / "keys")) as url:
        with client(url, new) as api:
            assert api.models.list().data
        with client(url, old) as api, pytest.raises(openai.PermissionDeniedError) as caught:
            api.models.list()
        assert caught.value.code == "revoked_api_key"


def test_a_refused_body_is_not_read() -> None:
    """Who may not ask cannot make the server hold megabytes, either."""
    with guarded() as url:
        response = httpx.post(url + "/v1/completions", content=b" " * (64 * 2**20))
        assert response.status_code == 401


def test_a_bad_key_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Gateway(GatewayOptions(api_key_file=str(tmp_path / "none")))


async def test_websockets_are_not_an_open_door() -> None:
    """There are none today; one that is added must not pass by the keys."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("was let in")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    guard = GatewayMiddleware(app, Gateway(GatewayOptions(api_key=(KEY,))), error_response)
    receive: Any = asyncio.Event().wait
    await guard({"type": "websocket", "path": "/ws", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_without_keys_and_limits_nothing_stands_in_between() -> None:
    engine = ScriptedEngine()
    with (
        running_server(engine, gateway=Gateway(GatewayOptions())) as url,
        client(url, "any") as api,
    ):
        response = api.completions.with_raw_response.create(
            model="scripted", prompt="x", extra_body={"cache_salt": "mine"}
        )
    assert not [name for name in response.headers if name.startswith("x-ratelimit")]
    assert (engine.submitted[0].tenant, engine.submitted[0].cache_salt) == ("", "mine")


def test_requests_carry_their_tenant_and_its_salt(tmp_path: Path) -> None:
    alice, bob = new_key(), new_key()
    (tmp_path / "keys").write_text(f"{key_line('alice', alice)}\n{key_line('bob', bob)}\n")
    engine = ScriptedEngine()
    with guarded(engine, api_key=(), api_key_file=str(tmp_path / "keys")) as url:
        for key, salt in (
            (alice, None),
            (alice, None),
            (bob, None),
            (alice, "x"),
            (bob, "x"),
            (bob, "5:alice"),
        ):
            with client(url, key) as api:
                body = {} if salt is None else {"cache_salt": salt}
                api.completions.create(model="scripted", prompt="x", extra_body=body)
    assert [r.tenant for r in engine.submitted] == ["alice", "alice", "bob", "alice", "bob", "bob"]
    salts = [r.cache_salt for r in engine.submitted]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 5


def test_limits_are_openais_headers() -> None:
    with guarded(requests_per_minute=3, tokens_per_minute=1000) as url, client(url) as api:
        response = api.completions.with_raw_response.create(model="scripted", prompt="x")
        headers = response.headers
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == "2"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        usage = response.parse().usage
        assert usage is not None
        # What this call has used is already subtracted: its answer is complete.
        assert int(headers["x-ratelimit-remaining-tokens"]) == 1000 - usage.total_tokens
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert headers["x-ratelimit-reset-tokens"] == "1m0s"
        listed = httpx.get(url + "/v1/models", headers=bearer())
        assert "x-ratelimit-limit-requests" not in listed.headers, "looking costs nothing"


def test_too_many_requests_are_a_429_that_says_when() -> None:
    engine = ScriptedEngine()
    with guarded(engine, requests_per_minute=2) as url, client(url) as api:
        for _ in range(2):
            list(api.completions.create(model="scripted", prompt="x", stream=True))
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(model="scripted", prompt="x")
        assert (caught.value.type, caught.value.code) == ("requests", "rate_limit_exceeded")
        headers = caught.value.response.headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["x-ratelimit-remaining-requests"] == "0"
        # Not for reading the list of models, and not for others.
        assert api.models.list().data
    assert len(engine.submitted) == 2


def test_too_many_tokens_are_a_429_of_their_own_type() -> None:
    engine = ScriptedEngine()
    with guarded(engine, tokens_per_minute=20) as url, client(url) as api:
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(model="scripted", prompt=list(range(1, 22)))
        assert (caught.value.type, caught.value.code) == ("tokens", "rate_limit_exceeded")
        assert "at most 20 tokens" in caught.value.message
        assert caught.value.response.headers["x-ratelimit-remaining-tokens"] == "20"
        assert not engine.submitted
        api.completions.create(model="scripted", prompt=list(range(1, 17)), max_tokens=4)
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(model="scripted", prompt=[1], max_tokens=1)
        assert "retry-after" in caught.value.response.headers
    assert len(engine.submitted) == 1


def test_an_answer_is_reserved_before_it_runs() -> None:
    """Short prompts with long answers do not slip through together.

    What they leave unused is given back.
    """
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.01))
    with guarded(engine, tokens_per_minute=100) as url, client(url) as api:
        running = api.completions.create(
            model="scripted", prompt=[1], max_tokens=30, n=2, stream=True
        )
        next(iter(running))
        with pytest.raises(openai.RateLimitError, match="61 used or reserved, 41 more requested"):
            api.completions.create(model="scripted", prompt=[1], max_tokens=40)
        assert len(engine.submitted) == 1
        running.close()
        wait_until(lambda: len(engine.aborted) > 0)
        engine.script = Script()
        api.completions.create(model="scripted", prompt=[1], max_tokens=40)


def test_a_chat_without_max_tokens_takes_what_is_left() -> None:
    """Of a limit below the model's context, too: it is not refused for ever."""
    engine = ScriptedEngine()
    with guarded(engine, tokens_per_minute=60) as url, client(url) as api:
        for _ in range(2):
            api.chat.completions.create(model="scripted", messages=USER)
    assert len(engine.submitted) == 2


def test_prompts_of_one_call_meet_the_limit_together() -> None:
    """None is submitted if they do not all fit; what can never fit gets no time to wait."""
    engine = ScriptedEngine()
    with guarded(engine, tokens_per_minute=30) as url, client(url) as api:
        prompts = [list(range(1, 11)), list(range(1, 26))]
        with pytest.raises(
            openai.RateLimitError, match=r"0 used or reserved, 37 more.*ask for at most 30"
        ) as caught:
            api.completions.create(model="scripted", prompt=prompts, max_tokens=1)
        assert caught.value.response.headers["x-ratelimit-remaining-tokens"] == "30"
        assert not engine.submitted
        api.completions.create(model="scripted", prompt=[[1, 2], [3, 4]], max_tokens=4)
    assert len(engine.submitted) == 2


def test_limits_without_keys_hold_for_all_clients_together() -> None:
    gateway = Gateway(GatewayOptions(requests_per_minute=1))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        assert httpx.post(url + "/v1/completions", json={"prompt": "x"}).status_code == 200
        assert (
            httpx.post(url + "/v1/completions", json={"prompt": "x"}, headers=bearer()).status_code
            == 429
        )


def test_a_storage_that_is_gone_is_a_503() -> None:
    options: dict[str, Any] = {
        "requests_per_minute": 1,
        "rate_limit_storage": "redis://127.0.0.1:9",
    }
    with (
        guarded(**options) as url,
        client(url) as api,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        api.completions.create(model="scripted", prompt="x")
    assert (caught.value.status_code, caught.value.code) == (503, "rate_limit_storage")
    assert "retry-after" in caught.value.response.headers
