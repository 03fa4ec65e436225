"""The API document of a server with keys and limits names what the gateway needs and sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.test_schemathesis import SECONDS, WITH_BODY, WITHOUT
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions

KEY = {"authorization": "Bearer sk-secret"}
# Fewer than the examples: the last ones are refused, and that must be documented too.
REQUESTS, EXAMPLES = 12, 5
# The former: see there. The latter tries again with the key, as it is no part of the case: we try
# without it ourselves.
EXCLUDED: list[CheckFunction] = [positive_data_acceptance, ignored_auth]


@pytest.fixture(scope="module")
def document() -> Iterator[BaseSchema]:
    gateway = Gateway(
        GatewayOptions(
            api_key=("sk-secret",), requests_per_minute=REQUESTS, tokens_per_minute=10**6
        )
    )
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json", headers=KEY)


@pytest.mark.parametrize("label", WITH_BODY + WITHOUT)
def test_operation(document: BaseSchema, label: str) -> None:
    """With the key, without it and with a wrong one."""
    operation = document.find_operation_by_label(label)
    assert operation is not None

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    def answers_as_documented(case: Case[Any]) -> None:
        case.call_and_validate(headers=KEY, timeout=SECONDS, excluded_checks=EXCLUDED)
        url = (operation.base_url or "").rstrip("/") + case.formatted_path
        for headers in ({}, {"authorization": "Bearer sk-wrong"}):
            refused = httpx.request(case.method, url, headers=headers)
            assert refused.status_code == (200 if label == "GET /health" else 401)
            assert str(refused.status_code) in operation.definition.raw["responses"]

    answers_as_documented()


def test_what_the_gateway_adds(document: BaseSchema) -> None:
    raw: Any = document.raw_schema
    assert raw["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in raw["paths"].items():
        for method, operation in operations.items():
            assert ("security" in operation) == (path != "/health")
            assert path == "/health" or {"401", "403"} <= operation["responses"].keys(), path
            counted = [
                name
                for answer in operation["responses"].values()
                for name in answer.get("headers", {})
            ]
            assert ("x-ratelimit-remaining-tokens" in counted) == (method == "post")


def test_a_server_without_keys_asks_for_none() -> None:
    with running_server(ScriptedEngine()) as url:
        raw = httpx.get(f"{url}/openapi.json").json()
    assert "securitySchemes" not in raw["components"]
    assert not any(
        "security" in operation
        for operations in raw["paths"].values()
        for operation in operations.values()
    )
