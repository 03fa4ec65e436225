"""Protects: what a live server tells of its engines, to the page and to the doctor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx

from tests.engine.process.scripted_process import pid_of
from tests.inspector.fleets import live_fleet
from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.doctor.imbalance import ALIKE
from twostroke.doctor.live import LiveServer
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.keys import key_line
from twostroke.gateway.options import GatewayOptions


def complete(url: str, number: int = 1) -> None:
    for each in range(number):
        body = {"prompt": [7 + each] * 40, "max_tokens": 12, "ignore_eos": True}
        httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()


def test_each_engine_tells_of_itself_and_of_its_steps(tmp_path: Path) -> None:
    with live_fleet(tmp_path) as (replicas, url):
        replicas.retire(1)
        complete(url, 3)
        replicas.take_back(1)
        with LiveServer(url) as server:
            windows, fleet = server.windows(None)
            assert [window.name for window in windows] == ["engine 0"]
            assert fleet.idle == ["engine 1"] and not fleet.trouble
            assert fleet.routed["engine 0"] == {"least_loaded": 3}
        replicas.retire(0)
        complete(url, 12)
        replicas.take_back(0)
        with LiveServer(url) as server:
            windows, fleet = server.windows(None)
            assert [len(window.requests) for window in windows] == [3, 12]
            assert windows[1].requests[0].output == 12 and not fleet.idle
            assert windows[0].num_calls == 15
            shown = httpx.get(f"{url}/v1/inspect/engines?columns=20").json()
            assert [each["sent"] for each in shown["engines"]] == [3, 12]
            assert [len(each["running"]) for each in shown["replicas"]] == [20, 20]
            assert max(shown["replicas"][1]["running"]) > 0 and shown["end"] > shown["begin"]
            os.kill(pid_of(replicas.engines[1]), signal.SIGKILL)
            wait_until(lambda: not replicas.engines[1].takes_requests)
            windows, fleet = server.windows(None)
            assert "SIGKILL" in fleet.trouble["engine 1"] and len(windows) == 2


def test_steps_of_an_engine_come_in_pages(tmp_path: Path) -> None:
    with live_fleet(tmp_path) as (_, url):
        complete(url, 2)
        model = httpx.get(f"{url}/v1/inspect/engines").json()["engines"][0]["model"]
        path = f"{url}/v1/inspect/engines/steps?model={model}&number=0"
        whole = httpx.get(path).json()["steps"]["step"]
        first = httpx.get(f"{path}&max_steps=3").json()
        rest = httpx.get(f"{path}&from={first['last'] + 1}").json()["steps"]["step"]
        assert first["steps"]["step"] + rest == whole == list(range(len(whole)))
        answer = httpx.get(f"{url}/v1/inspect/engines/steps?model={model}&number=9")
        assert answer.status_code == 400 and "no such engine" in answer.text


def test_refused_calls_are_told_and_all_of_it_to_admins_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n".join((key_line("one", "sk-one"), key_line("boss", "sk", admin=True))))
    keys = GatewayOptions(api_key_file=str(file), requests_per_minute=2)
    with (
        tiny_engine() as engine,
        running_server(engine, gateway=Gateway(keys)) as url,
    ):
        headers = {"authorization": "Bearer sk-one"}
        body = {"prompt": "one", "max_tokens": 2}
        statuses = [
            httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code
            for _ in range(4)
        ]
        assert statuses == [200, 200, 429, 429]
        for path in ("calls", "engines", "engines/steps?model=m&number=0"):
            answer = httpx.get(f"{url}/v1/inspect/{path}", headers=headers)
            assert answer.status_code == 403, path
    with (
        tiny_engine() as engine,
        running_server(engine, gateway=Gateway(GatewayOptions(requests_per_minute=2))) as url,
    ):
        for _ in range(4):
            httpx.post(f"{url}/v1/completions", json=body)
        with LiveServer(url) as server:
            windows, fleet = server.windows(None)
        assert fleet == ALIKE
        assert (windows[0].num_calls, windows[0].status_429) == (4, 2)
