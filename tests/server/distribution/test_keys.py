"""Protects: a distribution needs a key, keeps to its limits, and is charged as a completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.gateway.test_usage import ALICE, BOB, bearer, gateway_with_keys, series
from tests.server.running import running_server, wait_until
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

PATH = "/v1/inspect/distribution"
BODY: dict[str, Any] = {"prompt": [5, 6, 7, 8, 9], "answer_token_ids": [10, 11]}


def test_a_key_is_needed_and_charged(tmp_path: Path) -> None:
    """Tokens of the answer so far are computed like a prompt, and cost as much."""
    gateway = gateway_with_keys(tmp_path)
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        assert httpx.post(url + PATH, json=BODY).status_code == 401
        answer = httpx.post(url + PATH, json=BODY, headers=bearer(ALICE))
        assert answer.status_code == 200
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 1)

        def used(tenant: str) -> tuple[float, float]:
            values = series(httpx.get(url + "/metrics", headers=bearer(tenant)).text)
            (own,) = values.values()
            return own["prompt_tokens_total"], own["output_tokens_total"]

        wait_until(lambda: used(ALICE) == (7, 1), 10)
        assert used(BOB) == (0, 0)
        state = httpx.get(url + "/v1/inspect/state", headers=bearer(ALICE)).json()
        assert [request["tenant"] for request in state["ended"]] == ["alice"]
        other = httpx.get(url + "/v1/inspect/state", headers=bearer(BOB)).json()
        assert other["ended"] == []


def test_limits_hold(tmp_path: Path) -> None:
    gateway = Gateway(GatewayOptions(api_key=(ALICE,), requests_per_minute=2))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        codes = [
            httpx.post(url + PATH, json=BODY, headers=bearer(ALICE)).status_code for _ in range(3)
        ]
    assert codes == [200, 200, 429]
    gateway = Gateway(GatewayOptions(api_key=(ALICE,), tokens_per_minute=10))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        answer = httpx.post(url + PATH, json={**BODY, "max_tokens": 4}, headers=bearer(ALICE))
    assert answer.status_code in (400, 429)


def test_without_the_inspector_there_is_no_route() -> None:
    with running_server(ScriptedEngine(), inspector=False) as url:
        assert httpx.post(url + PATH, json=BODY).status_code == 404


def test_an_engine_that_tells_no_distribution_is_an_error() -> None:
    with running_server(ScriptedEngine()) as url:
        answer = httpx.post(url + PATH, json={"prompt": [5]})
    assert answer.status_code == 500
    assert "distribution" in answer.json()["error"]["message"]
