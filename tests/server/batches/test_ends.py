"""How a batch ends that is not answered to its end: by time, by room, by a mistake of ours."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.server.batches.apps import begin, living, once, outputs
from tests.server.batches.batch_calls import (
    line,
    lines,
    message_requests,
    quick_engine,
)
from twostroke.server.batches import openai_routes
from twostroke.server.batches.openai_objects import OpenAIOutput
from twostroke.server.files.store import FileStore


async def test_what_is_not_answered_in_time_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_routes, "WINDOW", 2)
    engine = quick_engine(seconds_per_step=0.02)
    async with living(engine, FileStore(None, 2**24)) as client:
        first = await begin(client, lines(1000))
        await once(client, first, lambda batch: batch["request_counts"]["completed"] > 3)
        engine.script.endless = True
        waiting = await begin(client, lines(5))  # behind the first, to the end of its time
        for batch_id, total in ((first, 1000), (waiting, 5)):
            batch = await once(client, batch_id)
            assert batch["status"] == "expired" and batch["expired_at"] >= batch["expires_at"]
            good = await outputs(client, batch["output_file_id"])
            bad = await outputs(client, batch["error_file_id"])
            assert len(good) == batch["request_counts"]["completed"]
            assert len(good) + len(bad) == total and (len(good) > 3) == (total == 1000)
            assert {each["error"]["code"] for each in bad.values()} == {"batch_expired"}
    assert len(engine.aborted) > 0


async def test_time_passes_while_no_server_runs(tmp_path: Path) -> None:
    engine = quick_engine(endless=True, seconds_per_step=0.01)
    path = str(tmp_path / "files")
    async with living(engine, FileStore(path, 2**24)) as client:
        batch_id = await begin(client, lines(5))
        answer = await client.post("/v1/messages/batches", json={"requests": message_requests(3)})
        messages = f"/v1/messages/batches/{answer.json()['id']}"
        await once(client, batch_id, lambda batch: batch["status"] == "in_progress")
    later = FileStore(path, 2**24, clock=lambda: time.time() + 25 * 3600)
    async with living(engine, later) as client:
        assert (await once(client, batch_id))["status"] == "expired"
        while (batch := (await client.get(messages)).json())["processing_status"] != "ended":
            await asyncio.sleep(0.005)
        assert batch["request_counts"]["expired"] == 3
    # A month later nothing of it is known.
    month = FileStore(path, 2**24, clock=lambda: time.time() + 33 * 24 * 3600)
    async with living(engine, month) as client:
        while month.table.room.num_bytes:
            await asyncio.sleep(0.005)
        assert (await client.get(f"/v1/batches/{batch_id}")).status_code == 404
        assert (await client.get(messages)).status_code == 404
        assert not (await client.get("/v1/files")).json()["data"]


async def test_answers_that_do_not_fit_end_it() -> None:
    """What fits is there, and of each of the others is said that it was not answered."""
    files = FileStore(None, 2**17)
    async with living(quick_engine(), files) as client:
        batch_id = await begin(client, lines(150))
        batch = await once(client, batch_id)
        assert batch["status"] == "failed"
        (error,) = batch["errors"]["data"]
        assert error["code"] == "files_full" and "--files-store-size" in error["message"]
        good = await outputs(client, batch["output_file_id"])
        bad = await outputs(client, batch["error_file_id"])
        assert good and len(good) + len(bad) == 150
        assert {each["error"]["code"] for each in bad.values()} == {"batch_failed"}
        assert files.table.room.num_bytes <= 2**17


async def test_a_batch_of_which_nothing_could_be_said_does_not_begin() -> None:
    files = FileStore(None, 2**17)
    text = b"".join(line(f"c{i}", body={"prompt": ""}) for i in range(800))
    engine = quick_engine()
    async with living(engine, files) as client:
        batch = await once(client, await begin(client, text))
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "files_full"
        assert batch["output_file_id"] is None and batch["error_file_id"] is None
        body = {"requests": message_requests(300)}
        before = files.table.room.num_bytes
        refused = await client.post("/v1/messages/batches", json=body)
        assert refused.status_code == 413 and files.table.room.num_bytes == before
        assert not (await client.get("/v1/messages/batches")).json()["data"]
    assert not engine.submitted


async def test_a_bug_ends_that_batch_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("secret")

    async with living(quick_engine(), FileStore(None, 2**24)) as client:
        with monkeypatch.context() as patched:
            patched.setattr(OpenAIOutput, "answered", fail)
            batch = await once(client, await begin(client, lines(3)))
        (error,) = batch["errors"]["data"]
        assert (batch["status"], error["code"]) == ("failed", "internal_error")
        assert "secret" not in error["message"] and "secret" in caplog.text
        assert len(await outputs(client, batch["error_file_id"])) == 3
        assert (await once(client, await begin(client, lines(3))))["status"] == "completed"
