"""Protects: people and routers see what the prefix cache holds, and tenants only what is theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.keys import key_line
from twostroke.gateway.options import GatewayOptions

TEXT = list(range(5, 25))  # five blocks of four


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tiers = KVTierConfig(kv_disk=str(tmp_path_factory.mktemp("disk")), kv_events=True)
    with tiny_engine(tiers=tiers) as engine, running_server(engine) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keys ``alice``, ``bob`` and the admin's ``root``, each its name twice."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    lines = [key_line(name, name * 2, admin=name == "root") for name in ("alice", "bob", "root")]
    file.write_text("\n".join(lines))
    gateway = Gateway(GatewayOptions(api_key_file=str(file)))
    with (
        tiny_engine(tiers=KVTierConfig(kv_events=True)) as engine,
        running_server(engine, gateway=gateway) as url,
    ):
        yield url


def call(url: str, method: str, path: str, key: str = "", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key * 2}"} if key else {}
    return httpx.request(method, url + path, headers=headers, timeout=30, **options)


def complete(url: str, tokens: list[int], key: str = "") -> dict[str, Any]:
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0}
    answer = call(url, "POST", "/v1/completions", key, json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def nodes(prefixes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in prefixes:
        yield node
        yield from nodes(node["children"])


def test_the_tree_shows_prefixes_hits_and_tiers(url: str) -> None:
    """Two texts with a common start: a node for what they share and one for each rest."""
    call(url, "DELETE", "/v1/cache").raise_for_status()
    complete(url, [*TEXT, 30, 31, 32, 33, 34])
    complete(url, [*TEXT, 40, 41, 42, 43, 44])
    report = call(url, "GET", "/v1/cache").json()
    (shared,) = report["prefixes"]
    assert (shared["tokens"], shared["hits"], len(shared["children"])) == (20, 1, 2)
    assert shared["tiers"] == ["memory", "disk"]
    sizes = {tier["name"]: tier["blocks"] for tier in report["tiers"]}
    assert sizes == {"memory": 7, "disk": 7}


def test_a_pinned_prefix_is_computed_and_kept(url: str) -> None:
    call(url, "DELETE", "/v1/cache").raise_for_status()
    body = {"tokens": [*TEXT, 50], "ttl": 100}
    pinned = call(url, "POST", "/v1/cache/prefixes", json=body).json()
    counts = [pinned[f"{name}_tokens"] for name in ("prompt", "pinned", "cached")]
    assert counts == [21, 20, 0]
    (node,) = call(url, "GET", "/v1/cache").json()["prefixes"]
    assert node["id"] == pinned["id"] and 0 < node["pinned_seconds"] <= 100
    assert complete(url, [*TEXT, 51])["prompt_tokens_details"]["cached_tokens"] == 20
    pinned = call(
        url,
        "POST",
        "/v1/cache/prefixes",
        json={"messages": [{"role": "user", "content": "the dog"}]},
    ).json()
    assert pinned["pinned_tokens"] > 0


def test_an_emptied_cache_computes_again(url: str) -> None:
    """Its tiers are empty, too."""
    complete(url, [*TEXT, 60])
    assert call(url, "DELETE", "/v1/cache").json()["cleared_blocks"] >= 5
    wait_until(lambda: call(url, "GET", "/v1/cache").json()["tiers"][1]["blocks"] == 0)
    assert complete(url, [*TEXT, 60])["prompt_tokens_details"]["cached_tokens"] == 0


def test_bad_pins_are_refused(url: str) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"tokens": [1], "messages": []},
        {"tokens": [1], "ttl": 0},
        {"tokens": [9**9]},
    ]
    for body in bodies:
        answer = call(url, "POST", "/v1/cache/prefixes", json=body)
        assert answer.status_code == 400, answer.text


def read_events(url: str, path: str, key: str = "", count: int = 1) -> list[dict[str, Any]]:
    """The first batches of the stream."""
    headers = {"authorization": f"Bearer {key * 2}"} if key else {}
    batches: list[dict[str, Any]] = []
    with httpx.stream("GET", url + path, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                batches.append(json.loads(line.removeprefix("data: ")))
                if len(batches) == count:
                    return batches
    return batches


def test_events_have_the_fields_of_vllm(url: str) -> None:
    """From a cleared cache on: what is stored in memory, then on disk; resumed by number."""
    call(url, "DELETE", "/v1/cache").raise_for_status()
    complete(url, [*TEXT, 70])
    wait_until(lambda: call(url, "GET", "/v1/cache").json()["tiers"][1]["blocks"] == 5)
    last = read_events(url, "/v1/cache/events")[-1]["seq"]
    batches = read_events(url, "/v1/cache/events", count=last + 1)
    assert [batch["seq"] for batch in batches] == list(range(last + 1))
    events = [event for batch in read_all(url) for event in batch["events"]]
    start = max(i for i, event in enumerate(events) if event["type"] == "AllBlocksCleared")
    stored = [event for event in events[start:] if event["type"] == "BlockStored"]
    in_memory = [event for event in stored if event["medium"] == "CPU"]
    assert [event["token_ids"] for event in in_memory] == [TEXT[i : i + 4] for i in range(0, 20, 4)]
    assert in_memory[0]["parent_block_hash"] is None
    assert in_memory[1]["parent_block_hash"] == in_memory[0]["block_hashes"][0]
    assert in_memory[0]["block_size"] == 4
    on_disk = [event for event in stored if event["medium"] == "DISK"]
    assert _hashes(on_disk) == _hashes(in_memory)


def _hashes(events: list[dict[str, Any]]) -> set[str]:
    return {key for event in events for key in event["block_hashes"]}


def read_all(url: str) -> list[dict[str, Any]]:
    """All batches so far: one more is made to know where they end."""
    marker = [*range(100, 104), 1]
    complete(url, marker)
    batches: list[dict[str, Any]] = []
    headers = {"accept": "text/event-stream"}
    with httpx.stream("GET", url + "/v1/cache/events", headers=headers, timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                batches.append(json.loads(line.removeprefix("data: ")))
                if any(event.get("token_ids") == marker[:4] for event in batches[-1]["events"]):
                    return batches[:-1]
    raise AssertionError("the stream ended")


def test_tenants_see_what_is_theirs(guarded: str) -> None:
    """Names are for admins; so are the stream of everybody's tokens and the big broom."""
    complete(guarded, [*TEXT, 80], "alice")
    complete(guarded, [90, 91, 92, 93, 94], "bob")
    seen = {}
    for key in ("alice", "bob", "root"):
        tree = call(guarded, "GET", "/v1/cache", key).json()["prefixes"]
        seen[key] = [(node["tokens"], node["tenants"]) for node in nodes(tree)]
    assert seen["alice"] == [(20, None)] and seen["bob"] == [(4, None)]
    assert sorted(seen["root"]) == [(4, ["bob"]), (20, ["alice"])]
    for method, path in (("DELETE", "/v1/cache"), ("GET", "/v1/cache/events")):
        refused = call(guarded, method, path, "alice")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
    assert read_events(guarded, "/v1/cache/events", "root")
    assert call(guarded, "DELETE", "/v1/cache", "root").status_code == 200


def test_without_the_flag_nothing_is_published(tmp_path: Path) -> None:
    with tiny_engine() as engine, running_server(engine) as url:
        refused = call(url, "GET", "/v1/cache/events")
    assert refused.status_code == 400 and "--kv-events" in refused.text
