"""Protects: a fleet's figures are those of its recordings, and each replica has its own page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inspector.fleets import REPLICAS, fleet_page, fleet_recording
from twostroke.core.errors import ConfigError
from twostroke.inspector.fleet.recorded_fleet import MAX_SHOWN, RecordedFleet
from twostroke.observability.fleet_file import read_fleet_file
from twostroke.observability.recorder import read_jsonl


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fleet_page(fleet_recording()) as address:
        yield address.removesuffix("/inspect/")


def get(url: str, path: str = "", **query: object) -> Any:
    params: dict[str, Any] = query
    answer = httpx.get(f"{url}/v1/inspect{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_facts_are_those_of_routes_and_recordings(url: str) -> None:
    head, routes = read_fleet_file(fleet_recording())
    facts = get(url, "/fleet")
    assert facts["router"] == "prefix-affinity"
    assert sum(replica["requests"] for replica in facts["replicas"]) == len(routes) == 120
    assert sum(facts["reasons"].values()) == 120
    assert facts["reasons"]["prefix"] > 40
    for number, replica in enumerate(facts["replicas"]):
        steps = list(read_jsonl(fleet_recording().parent / head.recordings[number]))
        assert replica["steps"] == len(steps)
        finished = {done.request_id for step in steps for done in step.finished}
        assert finished == {route.request_id for route in routes if route.replica == number}
    assert 1 <= facts["imbalance"] <= REPLICAS


def test_strips_lead_to_steps_and_imbalance_is_the_busiest_by_the_mean(url: str) -> None:
    strips = get(url, "/fleet/occupancy", columns=16)
    for number, replica in enumerate(strips["replicas"]):
        assert len(replica["running"]) == 16
        middle = strips["begin"] + (strips["end"] - strips["begin"]) * 8.5 / 16
        step = replica["step"][8]
        found = get(f"{url}/replicas/{number}", "/steps", at=middle, count=1)
        assert found["steps"]["step"][-1] == step
    for column, imbalance in enumerate(strips["imbalance"]):
        loads = [one["running"][column] + one["waiting"][column] for one in strips["replicas"]]
        mean = sum(loads) / REPLICAS
        assert imbalance == pytest.approx(max(loads) / mean if mean else 0, abs=0.01)
    routed = strips["routed"]
    assert sum(map(sum, routed.values())) == 120
    part = get(url, "/fleet/occupancy", begin=0.5, end=1.0, columns=2)
    within = [r for r in read_fleet_file(fleet_recording())[1] if 0.5 <= r.time <= 1.0]
    assert sum(map(sum, part["routed"].values())) == len(within) > 0


def test_routes_are_the_latest_before_a_moment(url: str) -> None:
    routes = read_fleet_file(fleet_recording())[1]
    before = routes[40].time
    found = get(url, "/fleet/routes", before=before, count=5)
    expected = [route.request_id for route in routes if route.time <= before][::-1][:5]
    assert [item["route"]["request_id"] for item in found] == expected
    of_one = get(url, "/fleet/routes", replica=1, count=1000)
    assert {item["route"]["replica"] for item in of_one} == {1}
    assert len(of_one) == sum(route.replica == 1 for route in routes)
    item = of_one[0]
    state = get(f"{url}/replicas/1", "/state", step=item["step"])
    ended = {request["request_id"] for request in state["ended"]}
    assert item["route"]["request_id"] in ended


def test_each_replica_has_its_page_and_its_steps(url: str) -> None:
    for number in range(REPLICAS):
        assert httpx.get(f"{url}/replicas/{number}/inspect/app.js").status_code == 200
        told = get(f"{url}/replicas/{number}")
        assert told["configuration"]["fleet"] == {"replica": number, "replicas": REPLICAS}
        assert get(f"{url}/replicas/{number}", "/fleet")["shown"] == number
    assert get(url)["configuration"]["fleet"]["replica"] == 0
    for wrong in ("/replicas/3/inspect/", "/replicas/x/inspect/", "/replicas/-1/v1/inspect"):
        assert httpx.get(url + wrong).status_code == 404


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/occupancy?begin=2&end=1", "end"),
        ("/occupancy?begin=nan", "end"),
        ("/occupancy?end=inf", "end"),
        ("/occupancy?columns=0", "columns"),
        ("/occupancy?columns=99999", "columns"),
        ("/routes?replica=3", "replica"),
        ("/routes?count=0", "count"),
    ],
)
def test_a_wrong_query_is_refused_by_name(url: str, path: str, param: str) -> None:
    answer = httpx.get(f"{url}/v1/inspect/fleet{path}")
    assert answer.status_code == 400
    assert param in answer.json()["error"]["param"]


def copy_of_recording(folder: Path) -> Path:
    for file in fleet_recording().parent.iterdir():
        shutil.copy(file, folder / file.name)
    return folder / fleet_recording().name


def test_a_replica_that_took_no_step_is_a_row_without_a_page(tmp_path: Path) -> None:
    path = copy_of_recording(tmp_path)
    (tmp_path / "steps.0.jsonl").write_text("")
    with fleet_page(path) as address:
        url = address.removesuffix("/inspect/")
        facts = get(url, "/fleet")
        assert facts["replicas"][0]["steps"] == 0
        assert facts["shown"] == 1
        strips = get(url, "/fleet/occupancy", columns=4)["replicas"][0]
        assert (strips["running"], strips["step"]) == ([0.0] * 4, [])
        assert get(url, "/fleet/routes", replica=0)[0]["step"] == -1
        assert httpx.get(f"{url}/replicas/0/inspect/").status_code == 404


def test_files_that_are_missing_or_too_many_are_named(tmp_path: Path) -> None:
    path = copy_of_recording(tmp_path)
    (tmp_path / "steps.1.jsonl").unlink()
    with pytest.raises(ConfigError) as error:
        RecordedFleet(path)
    assert "steps.1.jsonl" in str(error.value)
    names = ",".join(f'"{number}.jsonl"' for number in range(MAX_SHOWN + 1))
    path.write_text(f'{{"fleet":1,"router":"x","recordings":[{names}]}}\n')
    with pytest.raises(ConfigError, match=f"names {MAX_SHOWN + 1} replicas"):
        RecordedFleet(path)
