"""``/metrics`` by key: each tenant sees its own series, an administrator all, and no others."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from twostroke.cli.main import run
from twostroke.engine.clients.base import ChargedTokens
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.keys import key_line, read_key_file
from twostroke.gateway.options import GatewayOptions
from twostroke.gateway.usage import UsageBook

ADMIN, ALICE, BOB = "sk-admin", "sk-alice", "sk-bob"
ENGINES = "vllm:num_requests_running"
NAMES = ("requests_total", "requests_unfinished", "prompt_tokens_total", "output_tokens_total")


def gateway_with_keys(folder: Path, *, metrics_without_key: bool = False) -> Gateway:
    lines = [key_line("ops", ADMIN, admin=True), key_line("alice", ALICE), key_line("bob", BOB)]
    (folder / "keys").write_text("\n".join(lines))
    file = str(folder / "keys")
    return Gateway(GatewayOptions(api_key_file=file, metrics_without_key=metrics_without_key))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def series(text: str) -> dict[str, dict[str, float]]:
    """Values by tenant and name; the engine's are those of the tenant ``""``."""
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            tenant = sample.labels.get("tenant", "")
            name = sample.name.removeprefix("twostroke:tenant_")
            values.setdefault(tenant, {})[name] = sample.value
    return values


def test_each_key_sees_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    with running_server(engine, gateway=gateway_with_keys(tmp_path)) as url:
        for key, n in ((ALICE, 1), (ALICE, 2), (BOB, 1)):
            body = {"prompt": ["the dog", "the dog"], "n": n}
            answer = httpx.post(url + "/v1/completions", json=body, headers=bearer(key))
            assert answer.status_code == 200
        seen = {}
        for key in (ADMIN, ALICE, BOB):
            answer = httpx.get(url + "/metrics", headers=bearer(key))
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            seen[key] = series(answer.text)
        assert httpx.get(url + "/metrics").status_code == 401
    assert {key: sorted(tenants) for key, tenants in seen.items()} == {
        ADMIN: ["", "alice", "bob", "ops"],
        ALICE: ["alice"],
        BOB: ["bob"],
    }
    assert ENGINES in seen[ADMIN][""]
    prompt_tokens = sum(
        len(request.prompt_token_ids) for request in engine.submitted if request.tenant == "alice"
    )
    assert seen[ALICE]["alice"] == seen[ADMIN]["alice"]
    assert seen[ALICE]["alice"] == dict(zip(NAMES, (4, 0, prompt_tokens, 24)))
    assert seen[BOB]["bob"]["requests_total"] == 2
    assert seen[ADMIN]["ops"] == dict.fromkeys(NAMES, 0)


def test_what_runs_and_what_is_left_is_counted(tmp_path: Path) -> None:
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.01))
    with running_server(engine, gateway=gateway_with_keys(tmp_path)) as url:

        def own() -> dict[str, float]:
            return series(httpx.get(url + "/metrics", headers=bearer(ALICE)).text)["alice"]

        body = {"prompt": "the dog", "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body, headers=bearer(ALICE)) as r:
            lines = r.iter_lines()
            assert next(lines)
            assert own()["requests_unfinished"] == 1 and own()["output_tokens_total"] == 0
        wait_until(lambda: own()["requests_unfinished"] == 0)
        assert own()["requests_total"] == 1 and own()["output_tokens_total"] > 0


def test_left_open_it_names_no_tenant(tmp_path: Path) -> None:
    gateway = gateway_with_keys(tmp_path, metrics_without_key=True)
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        for headers in ({}, bearer(ALICE)):
            text = httpx.get(url + "/metrics", headers=headers).text
            assert list(series(text)) == [""] and "alice" not in text


def test_without_others_there_is_nothing_to_hide() -> None:
    """One key, as with vLLM's flag of that name, or none."""
    gateways = (
        Gateway(GatewayOptions(api_key=(ALICE,))),
        Gateway(GatewayOptions()),
        Gateway(GatewayOptions(requests_per_minute=9)),
    )
    for gateway in gateways:
        with running_server(ScriptedEngine(), gateway=gateway) as url:
            assert ENGINES in httpx.get(url + "/metrics", headers=bearer(ALICE)).text
    with running_server(
        ScriptedEngine(), gateway=Gateway(GatewayOptions(api_key=(ALICE, BOB)))
    ) as url:
        assert ENGINES not in httpx.get(url + "/metrics", headers=bearer(ALICE)).text


def test_the_key_of_an_administrator(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert run(["key", "ops", "--admin", "--append", str(path)]) == 0
    assert run(["key", "alice", "--append", str(path)]) == 0
    assert [(record.name, record.admin) for record in read_key_file(path)] == [
        ("ops", True),
        ("alice", False),
    ]


def test_counting_is_cheap() -> None:
    """Ten thousand tenants cost a request nothing, and a scrape of one key as little as of ten."""

    class Stream:
        def when_ended(self, on_end: object) -> None:
            assert callable(on_end)
            on_end(ChargedTokens(2, 3))

    book = UsageBook(f"t{i}" for i in range(10_000))
    began = time.thread_time()
    for _ in range(10_000):
        book.of("t7").watch(Stream())  # type: ignore[arg-type]
    per_request = (time.thread_time() - began) / 10_000
    text = book.render("t7")
    assert series(text.decode())["t7"] == dict(zip(NAMES, (1e4, 0, 2e4, 3e4)))
    assert len(text) < 2_000 and per_request < 1e-4
