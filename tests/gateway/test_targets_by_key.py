"""``/v1/targets`` on a real engine: each key sees its own, an administrator all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_usage import ADMIN, ALICE, BOB, bearer, gateway_with_keys
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.core.config import ObservabilityConfig
from twostroke.server.banner import targets_summary

TARGETS = (
    *("ttft=p95:59", "tpot=p50:0.000001", "errors=0.001", "kv=0.9", "queue=25"),
    *("e2el=p50:0.000001,key=*", "ttft=p95:0.000001,key=bob"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("keys")
    config = ObservabilityConfig(target=TARGETS)
    with tiny_engine(observability=config) as engine:
        assert targets_summary(engine.watched_targets)[0].startswith(
            "  targets    ttft=p95:59, tpot=p50:0.000001, errors=0.001"
        )
        with running_server(engine, gateway=gateway_with_keys(folder)) as url:
            for key, user in ((ALICE, "ann"), (ALICE, "abe"), (BOB, "ben")):
                body = {"prompt": "the dog", "max_tokens": 5, "ignore_eos": True, "user": user}
                answer = httpx.post(url + "/v1/completions", json=body, headers=bearer(key))
                assert answer.status_code == 200
            yield url


def targets(url: str, key: str) -> dict[str, Any]:
    answer = httpx.get(url + "/v1/targets", headers=bearer(key))
    assert answer.status_code == 200
    return {report["target"]: report for report in answer.json()["data"]}


def test_an_administrator_sees_all(url: str) -> None:
    seen = targets(url, ADMIN)
    assert {text: report["verdict"] for text, report in seen.items()} == {
        "ttft=p95:59": "met",
        "tpot=p50:0.000001": "missed",
        "errors=0.001": "met",
        "kv=p95:0.9": "met",
        "queue=p95:25": "met",
        "e2el=p50:0.000001,key=alice": "missed",
        "e2el=p50:0.000001,key=bob": "missed",
        "ttft=p95:0.000001,key=bob": "missed",
    }
    worst = seen["tpot=p50:0.000001"]["worst"]
    assert sorted((miss["key"], miss["labels"]["user"]) for miss in worst) == [
        ("alice", "abe"),
        ("alice", "ann"),
        ("bob", "ben"),
    ]
    assert [w["seconds"] for w in seen["ttft=p95:59"]["windows"]] == [60, 300, 3600]


def test_a_key_sees_its_own(url: str) -> None:
    assert list(targets(url, ALICE)) == ["e2el=p50:0.000001,key=alice"]
    assert "bob" not in str(targets(url, ALICE)) and "alice" not in str(targets(url, BOB))
    assert httpx.get(url + "/v1/targets").status_code == 401


def test_metrics_by_key(url: str) -> None:
    own = httpx.get(url + "/metrics", headers=bearer(BOB)).text
    assert 'twostroke:tenant_target_met{target="ttft_p95",tenant="bob",window="5m"} 0.0' in own
    assert "alice" not in own and "twostroke:target_" not in own
    everything = httpx.get(url + "/metrics", headers=bearer(ADMIN)).text
    assert 'twostroke:target_met{engine="0",model_name=' in everything
    assert 'tenant_target_misses_total{target="e2el_p50",tenant="alice"} 2.0' in everything


def test_the_worst_are_called_as_the_client_knows_them(url: str) -> None:
    body = {"prompt": "the dog", "max_tokens": 2, "n": 2, "ignore_eos": True}
    answer = httpx.post(url + "/v1/completions", json=body, headers=bearer(BOB)).json()
    ids = {miss["request_id"] for miss in targets(url, BOB)["ttft=p95:0.000001,key=bob"]["worst"]}
    assert any(answer["id"] in request_id for request_id in ids)
