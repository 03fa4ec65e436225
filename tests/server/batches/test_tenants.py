"""Each key has files and batches of its own; they run as it, within its limits, on its account."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.batches.apps import begin, living, once, outputs
from tests.server.batches.batch_calls import (
    CHAT,
    lines,
    message_requests,
    quick_engine,
)
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.limits import Limits
from twostroke.gateway.options import GatewayOptions
from twostroke.server.files.store import FileStore

ANN, BEN = ({"authorization": f"Bearer sk-{name}"} for name in ("ann", "ben"))


def gateway_of(tmp_path: Path, *names: str, **options: Any) -> Gateway:
    path = tmp_path / "keys"
    digests = {name: hashlib.sha256(f"sk-{name}".encode()).hexdigest() for name in names}
    path.write_text("".join(f"{name}:{digest}\n" for name, digest in digests.items()))
    return Gateway(GatewayOptions(api_key_file=str(path), **options))


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return gateway_of(tmp_path, "ann", "ben")


async def test_nothing_is_seen_by_another_key(gateway: Gateway) -> None:
    async with living(quick_engine(), FileStore(None, 2**24), gateway) as client:
        batch_id = await begin(client, lines(3), headers=ANN)
        batch = await once(client, batch_id, headers=ANN)
        body = {"requests": message_requests(1)}
        answer = await client.post("/v1/messages/batches", json=body, headers=ANN)
        messages_id = answer.json()["id"]
        while (await client.get(f"/v1/messages/batches/{messages_id}", headers=ANN)).json()[
            "processing_status"
        ] != "ended":
            await asyncio.sleep(0.005)
        names = {
            "files": [batch["input_file_id"], batch["output_file_id"]],
            "batches": [batch_id],
            "messages/batches": [messages_id],
        }
        for kind, ids in names.items():
            assert not (await client.get(f"/v1/{kind}", headers=BEN)).json()["data"]
            for name in ids:
                path = f"/v1/{kind}/{name}"
                tried = [("GET", path), ("DELETE", path), ("GET", path + "/content")]
                tried += [("POST", path + "/cancel"), ("GET", path + "/results")]
                for method, url in tried:
                    refused = await client.request(method, url, headers=BEN)
                    assert refused.status_code in (404, 405), (method, url)
                    assert (await client.request(method, url)).status_code == 401
                assert (await client.get(path, headers=ANN)).status_code == 200
        for cursor in ("files", "batches"):
            response = await client.get(
                f"/v1/{cursor}", params={"after": names[cursor][0]}, headers=BEN
            )
            assert response.status_code == 400
        fields = {"endpoint": CHAT, "completion_window": "24h"}
        fields["input_file_id"] = batch["input_file_id"]
        stolen = await client.post("/v1/batches", json=fields, headers=BEN)
        assert stolen.status_code == 404


async def test_lines_run_as_their_key(tmp_path: Path) -> None:
    """With its name, the salt of its cache, its limits and its account."""
    gateway = gateway_of(tmp_path, "ann", "ben", tokens_per_minute=10**6)
    engine = quick_engine()
    async with living(engine, FileStore(None, 2**24), gateway) as client:
        await once(client, await begin(client, lines(5), headers=ANN), headers=ANN)
        assert {call.tenant for call in engine.submitted} == {"ann"}
        salts = {call.cache_salt for call in engine.submitted}
        await client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}]}, headers=ANN)
        assert salts == {engine.submitted[-1].cache_salt} and salts != {""}
        metrics = (await client.get("/metrics", headers=ANN)).text
        assert 'twostroke:tenant_requests_total{tenant="ann"} 6.0' in metrics, metrics
        answer = await client.post("/v1/files", headers=ANN)
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
        spent = sum(len(call.prompt_token_ids) + 4 for call in engine.submitted)
        assert 10**6 - left == spent


async def test_a_batch_keeps_to_the_limits_of_its_key(
    tmp_path: Path,
) -> None:
    """It waits for the next window, and leaves what other keys may do alone."""
    options = GatewayOptions(api_key_file=str(tmp_path / "keys"), requests_per_minute=12)
    gateway_of(tmp_path, "ann", "ben")
    gateway = Gateway(options, limits=Limits(options, window_seconds=2))
    engine = quick_engine()
    async with living(engine, FileStore(None, 2**24), gateway) as client:
        batch_id = await begin(client, lines(30), headers=ANN)
        body = {"messages": [{"role": "user", "content": "x"}]}
        other = await client.post(CHAT, json=body, headers=BEN)
        assert other.status_code == 200
        batch = await once(client, batch_id, headers=ANN)
        assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        assert batch["completed_at"] - batch["created_at"] >= 2


async def test_a_key_that_is_gone_runs_nothing(tmp_path: Path) -> None:
    """Its batch ends, and says why; the key is not in the store."""
    path = str(tmp_path / "files")
    engine = quick_engine(seconds_per_step=0.01)
    gateway = gateway_of(tmp_path, "ann", "ben")
    async with living(engine, FileStore(path, 2**24), gateway) as client:
        batch_id = await begin(client, lines(30), headers=ANN)
        await once(client, batch_id, lambda b: b["request_counts"]["completed"] > 2, headers=ANN)
    assert b"sk-ann" not in b"".join(p.read_bytes() for p in tmp_path.glob("files*"))
    engine, files = quick_engine(), FileStore(path, 2**24)
    async with living(engine, files, gateway_of(tmp_path, "ben")) as client:
        query = "SELECT ended FROM batches"
        while not await files.run(lambda t: t.connection.execute(query).fetchone()[0]):
            await asyncio.sleep(0.005)
        assert (await client.get("/v1/models", headers=BEN)).status_code == 200
    assert not engine.submitted
    async with living(engine, FileStore(path, 2**24), gateway_of(tmp_path, "ann")) as client:
        batch = await once(client, batch_id, headers=ANN)
        assert batch["status"] == "failed"
        (error,) = batch["errors"]["data"]
        assert "there is no key of the name 'ann' any more" in error["message"]
        good = await outputs(client, batch["output_file_id"], headers=ANN)
        bad = await outputs(client, batch["error_file_id"], headers=ANN)
        assert len(good) > 2 and len(good) + len(bad) == 30


async def test_a_scope_from_outside_has_no_background(gateway: Gateway) -> None:
    """Only the server itself calls without a key; no header does."""
    async with living(quick_engine(), FileStore(None, 2**24), gateway) as client:
        for headers in ({}, {"twostroke.background": "ann"}, {"x-twostroke-background": "ann"}):
            response = await client.post(CHAT, json={"messages": []}, headers=headers)
            assert response.status_code == 401


async def test_keys_take_turns() -> None:
    """A batch of a thousand requests does not keep that of another key waiting."""
    gateway = Gateway(GatewayOptions(api_key=("sk-ann", "sk-ben")))
    engine = quick_engine(seconds_per_step=0.001)
    async with living(engine, FileStore(None, 2**24), gateway) as client:
        large = await begin(client, lines(1000), headers=ANN)
        await once(client, large, lambda b: b["request_counts"]["completed"] > 20, headers=ANN)
        before = len(engine.submitted)
        small = await begin(client, lines(20), headers=BEN)
        await once(client, small, headers=BEN)
        tenants = [call.tenant for call in engine.submitted[before:]]
        own = [i for i, tenant in enumerate(tenants) if tenant != engine.submitted[0].tenant]
        # As soon as it has begun, every other line is its own.
        assert len(own) == 20 and own[-1] - own[0] <= 60
        await client.post(f"/v1/batches/{large}/cancel", headers=ANN)


def test_httpx_is_loaded_only_for_a_batch() -> None:
    """Start-up does not pay for it."""
    code = "import sys, twostroke.server.application; assert 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
