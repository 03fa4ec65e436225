"""Protects: the traces of calls with keys and limits, those that are refused included."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys
from tests.observability.tracing.collector import event_names, running_collector, values
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.observability.tracing import names
from twostroke.observability.tracing.tracer import Tracer

BODY = {"prompt": "the dog"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_keys_and_their_absence(tmp_path: Path) -> None:
    with running_collector() as collector:
        tracer = Tracer(collector.url, "scripted", batch_seconds=0.01)
        gateway = gateway_with_keys(tmp_path)
        with running_server(ScriptedEngine(), gateway=gateway, tracer=tracer) as url:
            path = url + "/v1/completions"
            known = httpx.post(path, json=BODY, headers=bearer(ALICE))
            unknown = httpx.post(path, json=BODY, headers={"traceparent": PARENT})
        tracer.close()
        assert (known.status_code, unknown.status_code) == (200, 401)
        root = collector.trace(known.headers["traceresponse"])[0]
        assert event_names(root) == [names.RECEIVED, names.AUTHENTICATED]
        assert values(root.events[1].attributes)[names.TENANT] == "alice"
        refused = collector.trace(unknown.headers["traceresponse"])[0]
        assert refused.trace_id.hex() == PARENT.split("-")[1]
        assert values(refused.events[-1].attributes)[names.ERROR_TYPE] == "missing_api_key"


def test_limits() -> None:
    with running_collector() as collector:
        tracer = Tracer(collector.url, "scripted", batch_seconds=0.01)
        gateway = Gateway(GatewayOptions(requests_per_minute=1))
        with running_server(ScriptedEngine(), gateway=gateway, tracer=tracer) as url:
            first, second = (httpx.post(url + "/v1/completions", json=BODY) for _ in range(2))
        tracer.close()
        assert (first.status_code, second.status_code) == (200, 429)
        assert names.LIMITED in event_names(collector.trace(first.headers["traceresponse"])[0])
        refused = collector.trace(second.headers["traceresponse"])[0]
        assert event_names(refused) == [names.RECEIVED, names.ERROR]
        assert values(refused.events[-1].attributes)[names.ERROR_TYPE] == "rate_limit_exceeded"
