"""Protects: layers, points and a measurement over HTTP, on a real engine, and who may see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.gateway.test_usage import ADMIN, ALICE, bearer, gateway_with_keys
from tests.inspector.model.described import describe_tiny
from tests.inspector.recorded import events, recording
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.core.errors import ModelLoadError
from twostroke.engine.executor import ExecutorInfo
from twostroke.inspector.model.points import work_of
from twostroke.inspector.recording import Recording
from twostroke.model_spec.kv_arithmetic import kv_arithmetic
from twostroke.model_spec.public_models import find_model
from twostroke.questions.model_facts import ModelFacts
from twostroke.server.inspecting import create_inspecting_app
from twostroke.simulator.cost.shown_costs import facts_of_recording

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A request has run."""
    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with (
        tiny_engine(max_num_seqs=16) as engine,
        running_server(engine, gateway=gateway, describe_model=describe_tiny) as url,
    ):
        body = {"prompt": "the quick brown fox", "max_tokens": 9, "ignore_eos": True}
        answer = httpx.post(url + "/v1/completions", json=body, headers=bearer(ALICE))
        assert answer.status_code == 200
        yield url


def get(url: str, path: str, key: str = ADMIN, status: int = 200) -> Any:
    answer = httpx.get(f"{url}/v1/inspect{path}", headers=bearer(key), timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_tower_is_the_loaded_model(url: str) -> None:
    shown = get(url, "/model")
    spec = describe_tiny().spec
    tower = shown["tower"]
    assert tower["parameters"] == spec.num_parameters
    assert tower["weight_bytes"] == spec.weight_bytes("fp32")
    whole = [storey["bytes"] * max(1, storey["layers"]) for storey in tower["storeys"]]
    assert sum(whole) == tower["weight_bytes"]
    assert sum(storey["layers"] for storey in tower["storeys"]) == spec.num_layers
    assert shown["ceilings"]["bandwidth"] > 1e9
    assert shown["measured"]


def test_steps_are_points_with_their_own_time(url: str) -> None:
    points = get(url, "/model/steps?count=100&to=8")
    steps = get(url, "/steps?to=8&count=100")["steps"]
    assert points["step"] == steps["step"]
    assert points["seconds"] == steps["duration"]
    prompts = [index for index, requests in enumerate(points["requests"]) if requests == 0]
    decodes = [index for index, requests in enumerate(points["requests"]) if requests == 1]
    assert len(prompts) == 1
    assert len(decodes) == 8
    spec = describe_tiny().spec
    prompt = points["prompt"][prompts[0]]
    assert points["flops"][prompts[0]] == pytest.approx(spec.prefill_flops(prompt))
    for index in decodes:
        expected = spec.decode_flops(points["context"][index])
        assert points["flops"][index] == pytest.approx(expected)
    later = get(url, f"/model/steps?since={steps['step'][2]}&to=8")
    assert later["step"] == steps["step"][3:]


def test_paths_follow_batch_context_and_prompt(url: str) -> None:
    short, long = (get(url, f"/model/paths?context={n}&prompt={n}&batch=64") for n in (16, 200))
    assert short["requests"][0] == 1
    assert short["requests"][-1] == 64
    intensity = [flops / size for flops, size in zip(short["flops"], short["bytes"], strict=True)]
    assert intensity == sorted(intensity)
    assert long["bytes"][-1] > short["bytes"][-1]
    assert long["prefill"]["seconds"] > short["prefill"]["seconds"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("/model/paths?context=0&prompt=1", "context"),
        ("/model/paths?context=1", "prompt"),
        ("/model/paths?context=1&prompt=1&batch=99999", "batch"),
        ("/model/steps?count=100000", "count"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(url: str, query: str, field: str) -> None:
    assert field in get(url, query, status=400)["error"]["message"]


def test_a_measurement_runs_the_batches_for_which_there_is_room(url: str) -> None:
    price = get(url, "/model")["price"]
    assert price["batches"] == [1, 4, 16]
    assert price["requests"] == 24
    before = get(url, "")["last_step"]
    address = f"{url}/v1/inspect/model/measure"
    answer = httpx.post(address, content="{}", headers=bearer(ADMIN) | JSON, timeout=120)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [group["batch"] for group in found["groups"]] == [0, 1, 4, 16]
    assert [group["requests"] for group in found["groups"]] == [0, 1, 4, 16]
    assert not found["busy"]
    assert found["missing"] == found["shared"] == []
    assert found["ceilings"]["flops"] > 1e8
    assert found["ceilings"]["bandwidth"] > 1e7
    steps = get(url, f"/model/steps?since={before}&count=512")
    for group in found["groups"][1:]:
        own = [
            seconds
            for seconds, requests, prompt in zip(
                steps["seconds"], steps["requests"], steps["prompt"], strict=True
            )
            if requests == group["requests"] and not prompt
        ]
        assert len(own) == group["steps"]
        assert min(own) - 1e-5 <= group["seconds"] <= max(own) + 1e-5
    assert get(url, "/model")["measurement"] == found


def test_only_an_admin_sees_steps_and_measures(url: str) -> None:
    shown = get(url, "/model", ALICE)
    assert shown["tower"]["parameters"]
    assert shown["price"] is None
    assert shown["measurement"] is None
    get(url, "/model/steps", ALICE, status=403)
    address = f"{url}/v1/inspect/model/measure"
    assert httpx.post(address, json={}, headers=bearer(ALICE)).status_code == 403
    assert httpx.post(address, json={}).status_code == 401


def test_another_sites_script_cannot_start_a_measurement(url: str) -> None:
    """A browser sends such a type without asking the server first."""
    headers = bearer(ADMIN) | {"content-type": "text/plain"}
    answer = httpx.post(f"{url}/v1/inspect/model/measure", content="{}", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "content-type"


def test_terms_of_the_loaded_model_come_first(url: str) -> None:
    shown = get(url, "/kv-models", ALICE)
    assert shown["loaded"]
    assert shown["kv_cache"] == "fp32"
    first = shown["models"][0]
    spec = describe_tiny().spec
    each = sum(term["count"] * term["bytes_per_token"]["fp32"] for term in first["terms"])
    assert each == spec.kv_bytes_per_token("fp32")
    assert "deepseek-v3" in {model["name"] for model in shown["models"]}


def test_a_recording_knows_no_model_unless_somebody_says_it() -> None:
    source = Recording(recording())
    try:
        client = TestClient(create_inspecting_app(source))
        shown = client.get("/v1/inspect/model").json()
        assert shown["tower"] is None
        assert "--model" in shown["why"]
        refused = client.get("/v1/inspect/model/steps")
        assert refused.status_code == 400
        assert "--model" in refused.json()["error"]["message"]
        terms = client.get("/v1/inspect/kv-models").json()
        assert not terms["loaded"]
        llama = next(model for model in terms["models"] if model["name"] == "llama-3.1-8b")
        expected = kv_arithmetic(find_model("llama-3.1-8b"), 1000).conversation_bytes
        assert 1000 * sum(
            term["count"] * term["bytes_per_token"]["bf16"] for term in llama["terms"]
        ) == pytest.approx(expected)
    finally:
        source.close()


def test_steps_of_a_recording_whose_model_is_said() -> None:
    source = Recording(recording())
    facts = facts_of_recording("llama-3.1-8b", "h100")
    try:
        client = TestClient(create_inspecting_app(source, facts=facts))
        points = client.get("/v1/inspect/model/steps?to=60&count=20").json()
        assert points["step"][-1] == 60
        event = next(event for event in events() if event.step == 60)
        cost = facts.costs.cost(work_of(event))
        assert points["flops"][-1] == pytest.approx(cost.flops)
        assert points["seconds"][-1] == pytest.approx(event.duration, abs=1e-6)
        # The recording is a simulation of just this.
        assert points["estimate"][-1] == pytest.approx(event.duration, rel=0.2)
        answer = client.post("/v1/inspect/model/measure", json={})
        assert answer.status_code == 400
        assert client.get("/v1/inspect/model").json()["price"] is None
    finally:
        source.close()


def test_a_model_that_cannot_be_described_is_no_error() -> None:
    def describe(_: ExecutorInfo) -> ModelFacts:
        raise ModelLoadError("an encoder has no layers here")

    with tiny_engine() as engine, running_server(engine, describe_model=describe) as url:
        assert "an encoder has no layers here" in get(url, "/model")["why"]
        assert not get(url, "/kv-models")["loaded"]
        assert "an encoder" in get(url, "/model/steps", status=400)["error"]["message"]


def test_a_sheet_without_a_model_is_refused(tmp_path: Path) -> None:
    from twostroke.cli.main import run

    assert run(["inspect", str(recording()), "--gpu", "h100"]) != 0
