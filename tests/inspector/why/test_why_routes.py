"""Protects: seconds waited and bounds over HTTP, on a real engine, and who may see them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.gateway.test_usage import ADMIN, ALICE, BOB, bearer, gateway_with_keys
from tests.inspector.model.described import describe_tiny
from tests.inspector.recorded import events, recording
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.inspector.recording import Recording
from twostroke.server.inspecting import create_inspecting_app


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Four requests of Alice's came at once, and one place was there."""
    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with (
        tiny_engine(max_num_seqs=1) as engine,
        running_server(engine, gateway=gateway, describe_model=describe_tiny) as url,
    ):

        def ask(_: int) -> None:
            body = {"prompt": "the quick brown fox", "max_tokens": 150, "ignore_eos": True}
            address = f"{url}/v1/completions"
            answer = httpx.post(address, json=body, headers=bearer(ALICE), timeout=60)
            assert answer.status_code == 200

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))
        yield url


def get(url: str, path: str, key: str = ADMIN, status: int = 200) -> Any:
    answer = httpx.get(f"{url}/v1/inspect{path}", headers=bearer(key))
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_request_knows_what_it_waited_for_after_it_has_run(url: str) -> None:
    ended = get(url, "/state")["ended"]
    assert len(ended) == 4
    waited = 0.0
    for request in ended:
        found = get(url, f"/waits?id={request['request_id']}")
        queue = request["first_scheduled_time"] - request["arrival_time"]
        assert sum(found["queue"].values()) == pytest.approx(queue, abs=0.002)
        waited += found["queue"].get("max_num_seqs", 0.0)
    assert waited > 0
    (minute,) = get(url, "/waits/minutes?begin=0&end=1e12")[-1:]
    assert minute["seconds"]["max_num_seqs"] > 0


def test_only_a_keys_own_requests_are_told(url: str) -> None:
    request_id = get(url, "/state")["ended"][-1]["request_id"]
    assert get(url, f"/waits?id={request_id}", ALICE)["request_id"] == request_id
    assert get(url, f"/waits?id={request_id}", BOB) is None
    assert get(url, "/waits?id=none-such") is None
    get(url, "/waits/minutes?begin=0&end=1", ALICE, 403)
    get(url, "/bound", ALICE, 403)
    get(url, "/waits/minutes?begin=nan&end=1", ADMIN, 400)
    get(url, "/bound?tpot=-1", ADMIN, 400)


def test_what_bounded_the_engine(url: str) -> None:
    last = get(url, "")["last_step"]
    shown = get(url, f"/bound?to={last // 2}&seconds=60")
    assert shown["bound"]["kind"] == "queue"
    assert shown["bound"]["reason"] == "max_num_seqs"
    assert shown["room"]["places"] == 0
    assert shown["device"]
    assert shown["drafts"] is None


def test_a_server_that_rests_says_what_bound_its_few_latest_steps(url: str) -> None:
    """Two single tokens between rests: hardly any time and no decode, yet nothing is unknown."""
    body = {"prompt": "the quick brown fox", "max_tokens": 1}

    def is_at(step: int) -> bool:
        return int(get(url, "")["last_step"]) >= step

    last = get(url, "")["last_step"]
    for number in (1, 2):
        time.sleep(1.0)
        address = f"{url}/v1/completions"
        answer = httpx.post(address, json=body, headers=bearer(ALICE), timeout=60)
        assert answer.status_code == 200
        wait_until(partial(is_at, last + number), 10)
    shown = get(url, f"/bound?to={get(url, '')['last_step']}&seconds=0.9")
    assert shown["bound"]["within"] in {"host", "compute", "memory", "overhead"}
    # How many more fit is told of what decoded before.
    assert (shown["earlier"], shown["room"]["users"]) == (True, 1)


def test_a_moment_that_is_no_longer_kept_is_no_rest(url: str) -> None:
    shown = get(url, f"/bound?to={2**40}")
    assert (shown["bound"]["kind"], shown["bound"]["why"]) == ("unknown", "gone")
    assert shown["room"] is None


def test_the_ceilings_are_those_that_were_measured(url: str) -> None:
    last = get(url, "")["last_step"]
    sheet = get(url, f"/bound?to={last}")
    address = f"{url}/v1/inspect/model/measure"
    answer = httpx.post(address, json={}, headers=bearer(ADMIN), timeout=60)
    assert answer.status_code == 200, answer.text
    machine = answer.json()["ceilings"]["device"]
    assert sheet["device"] not in ("", machine)
    assert get(url, f"/bound?to={last}")["device"] == machine


def test_a_recording_answers_alike() -> None:
    source = Recording(recording())
    source.wait_until_read(60)
    client = TestClient(create_inspecting_app(source))
    late = max(
        (s for e in events() for s in e.scheduled if s.queued_since is not None),
        key=lambda s: (
            next(e.time for e in events() if any(x.request_id == s.request_id for x in e.scheduled))
            - (s.queued_since or 0.0)
        ),
    )
    found = client.get(f"/v1/inspect/waits?id={late.request_id}").json()
    assert found["queue"]["max_num_seqs"] > 0.1
    shown = client.get("/v1/inspect/bound?to=200").json()
    assert shown["bound"]["seconds"] <= 5.0
    assert shown["room"]["users"] >= 1
    # No configuration is known, but the steps before tell how many places there were.
    full = max(e.step for e in events() if e.held_back)
    after = next(e for e in events() if e.step > full and e.num_running < 9)
    room = client.get(f"/v1/inspect/bound?to={after.step}&seconds=60").json()["room"]
    assert room["places"] == max(e.num_running for e in events()) - after.num_running
    source.close()
