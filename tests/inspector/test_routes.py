"""Protects: feed and state over HTTP on a real engine: resumable, behind keys, tenants apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_usage import ADMIN, ALICE, BOB, bearer, gateway_with_keys
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.gateway.feeds import MAX_OF_ONE_KEY
from twostroke.inspector.static_files import known_files

LABEL = "<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two requests of Alice's and one of Bob's have run."""
    folder: Path = tmp_path_factory.mktemp("keys")
    gateway = gateway_with_keys(folder)
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        for key, user in ((ALICE, LABEL), (ALICE, "abe"), (BOB, "ben")):
            body = {"prompt": "the dog", "max_tokens": 5, "ignore_eos": True, "user": user}
            answer = httpx.post(url + "/v1/completions", json=body, headers=bearer(key))
            assert answer.status_code == 200
        yield url


def get(url: str, path: str, key: str = ADMIN) -> Any:
    answer = httpx.get(f"{url}/v1/inspect{path}", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(url: str, path: str, number: int, **headers: str) -> list[tuple[str, str, Any]]:
    """The first events of the feed: kind, id, data."""
    found = []
    sent = bearer(ADMIN) | headers
    with httpx.stream("GET", f"{url}/v1/inspect/events{path}", headers=sent, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                data = json.loads(fields["data"])
                found.append((fields["event"], fields.get("id", ""), data))
                fields = {}
                if len(found) == number:
                    break
    return found


def test_the_feed_says_hello_and_goes_on_after_a_step(url: str) -> None:
    last = get(url, "")["last_step"]
    hello, frame = events(url, "?since=2", 2)
    assert hello[0] == "hello"
    assert hello[2]["schema"] == 1
    assert hello[2]["clock_origin"] > 1e9
    assert frame[2]["steps"]["step"] == list(range(3, last + 1))
    assert frame[1] == str(last)
    resumed = events(url, "", 2, **{"last-event-id": str(last - 2)})[1]
    assert resumed[2]["steps"]["step"] == [last - 1, last]


def test_steps_by_range_and_by_count(url: str) -> None:
    assert get(url, "/steps?from=1&to=3")["steps"]["step"] == [1, 2, 3]
    assert get(url, "/steps?to=4&count=2")["steps"]["step"] == [3, 4]
    merged = get(url, "/steps?from=0&to=7&max_steps=2")
    assert merged["steps"]["span"] == [4, 4]
    assert merged["merged"] == 4


def test_state_tells_requests_and_blocks(url: str) -> None:
    state = get(url, "/state?blocks=true")
    assert state["running"] == state["waiting"] == []
    assert [request["tenant"] for request in state["ended"]] == ["alice", "alice", "bob"]
    assert state["ended"][0]["labels"] == {"user": LABEL}
    assert state["ended"][0]["num_output_tokens"] == 5
    assert state["blocks"]["num_blocks"] > 0


def test_a_key_sees_its_own_requests_only(url: str) -> None:
    state = get(url, "/state?blocks=true", BOB)
    assert [request["tenant"] for request in state["ended"]] == ["bob"]
    (own,) = {request["request_id"] for request in state["ended"]}
    steps = get(url, "/steps?from=0&to=1000", BOB)
    assert steps["ids"] == [own]
    assert len(steps["steps"]["step"]) == 5
    assert set(steps["steps"]["free"]) == {0}
    assert "alice" not in json.dumps(state) + json.dumps(steps)
    # Nor by asking for them: the filter narrows what a key sees, and never widens it.
    assert get(url, "/steps?from=0&to=1000&tenant=alice", BOB)["ids"] == [own]
    other = get(url, "/state")["ended"][0]["request_id"]
    assert get(url, f"/steps?from=0&to=1000&request_id={other}", BOB)["ids"] == []
    assert get(url, "", BOB)["all_tenants"] is False


def test_an_administrator_filters(url: str) -> None:
    assert len(get(url, "/steps?from=0&to=1000&tenant=alice")["ids"]) == 2
    other = get(url, "/state")["ended"][0]["request_id"]
    assert get(url, f"/steps?from=0&to=1000&request_id={other}")["ids"] == [other]


def test_one_key_cannot_keep_others_from_watching(url: str) -> None:
    read = []  # kept: an iterator that nobody holds closes its connection
    with ExitStack() as stack:

        def watch(key: str) -> int:
            stream = httpx.stream("GET", f"{url}/v1/inspect/events", headers=bearer(key))
            answer = stack.enter_context(stream)
            if answer.status_code == 200:
                read.append(answer.iter_lines())
                next(read[-1])  # it counts from its first event on
            return answer.status_code

        assert [watch(BOB) for _ in range(MAX_OF_ONE_KEY)] == [200] * MAX_OF_ONE_KEY
        assert watch(BOB) == 429
        assert watch(ALICE) == watch(ADMIN) == 200


@pytest.mark.parametrize("path", ["", "/events", "/steps", "/state"])
def test_without_a_key_nothing_is_told(url: str, path: str) -> None:
    assert httpx.get(f"{url}/v1/inspect{path}").status_code == 401


@pytest.mark.parametrize(
    "path", ["/steps?from=-5", "/steps?max_steps=0", "/steps?count=9999999", "/state?step=x"]
)
def test_bad_parameters_are_named(url: str, path: str) -> None:
    answer = httpx.get(f"{url}/v1/inspect{path}", headers=bearer(ADMIN))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("from", "max_steps", "count", "step")


def test_the_page_needs_no_key_and_holds_no_data(url: str) -> None:
    page = httpx.get(url + "/inspect/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    moved = httpx.get(url + "/inspect")
    assert (moved.status_code, moved.headers["location"]) == (307, "inspect/")
    for name in known_files():
        answer = httpx.get(f"{url}/inspect/{name}")
        assert answer.status_code == 200
        known = {"if-none-match": answer.headers["etag"]}
        assert httpx.get(f"{url}/inspect/{name}", headers=known).status_code == 304


@pytest.mark.parametrize("name", ["../routes.py", "..%2froutes.py", "none.js", "vendor", "lib/"])
def test_no_other_file_is_served(url: str, name: str) -> None:
    with httpx.Client() as client:
        request = client.build_request("GET", url)
        request.url = httpx.URL(url, raw_path=f"/inspect/{name}".encode())
        assert client.send(request).status_code in (401, 404)


def test_without_the_inspector_there_is_nothing() -> None:
    with running_server(ScriptedEngine(), inspector=False) as url:
        for path in ("/inspect", "/inspect/", "/v1/inspect", "/v1/inspect/events"):
            assert httpx.get(url + path).status_code == 404
