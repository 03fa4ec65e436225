"""Protects: names are the conventions', OpenTelemetry is imported only where it is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    url_attributes,
)

from twostroke.core.errors import ConfigError
from twostroke.observability.tracing import names, tracer
from twostroke.observability.tracing.tracer import Tracer
from twostroke.server.options import ServerOptions

# vLLM's, which the conventions do not have; its tracing.py.
VLLM = {
    "gen_ai.request.id",
    "gen_ai.request.n",
    "gen_ai.usage.num_sequences",
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_inference",
}


def test_names_are_those_of_the_conventions() -> None:
    modules = (gen_ai_attributes, error_attributes, http_attributes, url_attributes)
    known = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {value for name, value in vars(names).items() if name.isupper() and "." in value}
    ours = {value for value in ours if not value.startswith("twostroke.")}
    assert {value for value in ours if value.startswith("gen_ai.latency.")} <= VLLM
    templates = {"http.response.header.x-request-id"}
    assert ours - known - VLLM - templates == set()


def modules_after(code: str) -> dict[str, float]:
    """Which of OpenTelemetry's SDK a fresh interpreter has loaded, and the seconds it took."""
    report = (
        "\nimport json, sys, time\nbegan = time.perf_counter()\n"
        + code
        + "\nprint(json.dumps({'seconds': time.perf_counter() - began, 'sdk': float(any("
        "name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in"
        " sys.modules))}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_it_is_imported_only_when_it_is_on() -> None:
    assert not modules_after("import twostroke.server.application, twostroke.cli.serving.serve")[
        "sdk"
    ]


def test_the_import_is_short() -> None:
    """0.2 s at most on a quiet machine, and beside the load of the model; ten times that here."""
    done = modules_after("import twostroke.observability.tracing.spans")
    assert done["sdk"] and done["seconds"] < 2.0


def test_without_the_package_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        Tracer("http://127.0.0.1:1", "m")
    assert caught.value.hint == "pip install 'twostroke[otel]'"


@pytest.mark.parametrize(
    "url", ["localhost:4318", "http://", "grpc://a:1", "http://a:4317", "http://a:b"]
)
def test_addresses_that_cannot_work_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint"):
        ServerOptions(otlp_traces_endpoint=url)


def test_slow_needs_an_endpoint() -> None:
    with pytest.raises(ConfigError, match="together with --otlp-traces-endpoint"):
        ServerOptions(otlp_traces_slow_ttft=1.0)


def test_a_server_ends_soon_though_the_collector_is_away() -> None:
    """Nothing listens on port 1: the library would try again for ten seconds."""
    made = Tracer("http://127.0.0.1:1", "m", batch_seconds=0.01)
    trace = made.begin([])
    assert trace is not None
    trace.close(200)
    time.sleep(0.1)
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 4.0
