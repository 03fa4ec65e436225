"""Protects: pages may ask for plans and a diagnosis, and get what the commands say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_usage import ADMIN, ALICE, bearer, gateway_with_keys
from tests.inspector.recorded import events, recording
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.doctor.diagnose import diagnose
from twostroke.doctor.json_text import diagnosis_fields
from twostroke.doctor.window import make_window
from twostroke.planner.answer_plan import answer_plan
from twostroke.questions.foresight import AskedPlan

LOAD: dict[str, Any] = {"users": 200, "prompt": 1024, "output": 256, "ttft": 0.5, "tpot": 0.04}


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with showing("simulation", recording()) as address:
        yield address.replace("/inspect/", "/v1/inspect")


def test_plans_keep_to_their_targets_and_are_those_of_the_command(root: str) -> None:
    answer = httpx.post(f"{root}/plan", json=LOAD, timeout=60)
    assert answer.status_code == 200, answer.text
    planned = answer.json()
    assert planned["plans"]
    for plan in planned["plans"]:
        assert plan["ttft_p95_interval"][1] <= LOAD["ttft"]
        assert plan["tpot_p95_interval"][1] <= LOAD["tpot"]
    costs = [plan["cost_per_hour"] for plan in planned["plans"]]
    assert costs == sorted(costs)
    assert planned == json.loads(json.dumps(answer_plan(AskedPlan(**LOAD))))
    assert planned["command"].startswith("twostroke plan llama-3.1-8b --users 200 --input 1024")


def test_a_target_that_no_device_meets_has_no_plan_and_says_what_is_nearest(root: str) -> None:
    planned = httpx.post(f"{root}/plan", json={**LOAD, "tpot": 0.0005}, timeout=60).json()
    assert planned["plans"] == []
    assert planned["why_none"].startswith("the nearest is ")


@pytest.mark.parametrize(
    "body",
    [
        {"users": 0},
        {"model": "/etc/passwd"},
        {"prompt": 2**20},
        {"ttft": -1},
        {"gpus": "mine.toml"},
        [],
    ],
)
def test_a_plan_out_of_bounds_is_refused(root: str, body: Any) -> None:
    assert httpx.post(f"{root}/plan", json=body).status_code == 400


def test_a_diagnosis_is_that_of_the_same_steps(root: str) -> None:
    asked = {"targets": ["ttft=p95:0.3"]}
    answer = httpx.post(f"{root}/doctor", json=asked, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    expected = diagnosis_fields(diagnose([make_window("steps", events())], proof=False))
    assert found["causes"][0]["cause"] == "max-num-seqs" == expected["causes"][0]["cause"]
    # Times are sent in microseconds.
    assert found["figures"] == pytest.approx(expected["figures"], rel=1e-3)
    assert found["time"] == pytest.approx(expected["time"], rel=1e-3, abs=0.01)
    assert any(advice["change"].startswith("--max-num-seqs") for advice in found["advice"])
    assert found["targets"][0]["missed"] == (found["targets"][0]["value"] > 0.3)
    assert found["replay"]["requests"] == 60


@pytest.mark.parametrize("body", [{"targets": ["ttft"]}, {"targets": "x"}, {"seconds": 3}])
def test_a_diagnosis_that_is_asked_for_wrongly_is_refused(root: str, body: Any) -> None:
    assert httpx.post(f"{root}/doctor", json=body, timeout=60).status_code == 400


def test_a_diagnosis_is_for_admins_and_of_steps_that_ran(tmp_path: Path) -> None:
    with running_server(ScriptedEngine(), gateway=gateway_with_keys(tmp_path)) as url:
        path = f"{url}/v1/inspect"
        assert httpx.post(f"{path}/doctor", json={}).status_code == 401
        assert httpx.post(f"{path}/doctor", json={}, headers=bearer(ALICE)).status_code == 403
        empty = httpx.post(f"{path}/doctor", json={}, headers=bearer(ADMIN))
        assert empty.status_code == 400
        assert "no step has run yet" in empty.json()["error"]["message"]
        planned = httpx.post(f"{path}/plan", json={}, headers=bearer(ALICE), timeout=60)
        assert planned.status_code == 200
