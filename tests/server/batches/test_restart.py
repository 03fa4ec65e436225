"""A batch goes on where it ended: with another server, from wherever the former one died."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.server.batches import batch_calls
from tests.server.batches.apps import begin, living, once, outputs, upload
from tests.server.batches.batch_calls import (
    CHAT,
    lines,
    message_requests,
    openai_client,
    quick_engine,
)
from tests.server.running import running_process
from tests.server.scripted import ScriptedEngine
from twostroke.server.files.store import FileStore
from twostroke.server.files.table import FILE_OVERHEAD, PART_OVERHEAD, FileTable

T = TypeVar("T")
NUM_LINES = 40
MANY_LINES = 300  # several times what is answered at once


def store(folder: Path, max_bytes: int = 2**24) -> FileStore:
    return FileStore(str(folder / "files"), max_bytes)


def prompts(engine: ScriptedEngine) -> list[str]:
    return [engine.tokenizer.decode(call.prompt_token_ids) for call in engine.submitted]


async def test_a_batch_outlives_its_server_and_its_client(tmp_path: Path) -> None:
    engine = quick_engine(seconds_per_step=0.003)
    async with living(engine, store(tmp_path)) as client:
        batch_id = await begin(client, lines(MANY_LINES))
        found = await once(client, batch_id, lambda b: b["request_counts"]["completed"] >= 8)
        answered = found["request_counts"]["completed"]
    after = quick_engine()
    async with living(after, store(tmp_path)) as client:
        batch = await once(client, batch_id)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {
            "total": MANY_LINES,
            "completed": MANY_LINES,
            "failed": 0,
        }
        written = await outputs(client, batch["output_file_id"])
        assert [*written] == [f"c{i}" for i in range(MANY_LINES)]
    # What was answered is not asked again.
    assert 0 < len(after.submitted) <= MANY_LINES - answered
    assert len(set(prompts(after))) == len(after.submitted)


async def test_what_has_ended_stays(tmp_path: Path) -> None:
    async with living(quick_engine(), store(tmp_path)) as client:
        batch_id = await begin(client, lines(3))
        before = await once(client, batch_id)
    engine = quick_engine()
    async with living(engine, store(tmp_path)) as client:
        assert await once(client, batch_id) == before
        assert len(await outputs(client, before["output_file_id"])) == 3
    assert not engine.submitted


class MortalStore(FileStore):
    """After so many calls none of them returns, as if the process had been killed."""

    num_left = 0

    async def run(self, work: Callable[[FileTable], T]) -> T:
        self.num_left -= 1
        if self.num_left < 0:
            await asyncio.Event().wait()
        return await super().run(work)


async def until_death(files: MortalStore, client: httpx.AsyncClient, cancels: bool) -> str:
    """Begin a batch, and wait until its server is dead, or it has ended."""
    file_id = await upload(client, lines(NUM_LINES))
    fields = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    batch_id: str = (await client.post("/v1/batches", json=fields)).json()["id"]
    for _ in range(400):
        if files.num_left < 0:
            break
        if cancels and files.num_left < NUM_LINES // 2:
            try:
                async with asyncio.timeout(0.2):
                    await client.post(f"/v1/batches/{batch_id}/cancel")
            except TimeoutError:
                break
        await asyncio.sleep(0.005)
    return batch_id


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("num_calls", [*range(11, 22, 2), *range(24, 70, 9)])
async def test_wherever_a_server_dies(tmp_path: Path, num_calls: int, cancels: bool) -> None:
    """Each line has one outcome at the end, and the room that is counted is what is stored."""
    files = MortalStore(str(tmp_path / "files"), 2**24)
    files.num_left = num_calls
    async with living(quick_engine(), files) as client:
        batch_id = await until_death(files, client, cancels)
        files.num_left = 0
    reopened = store(tmp_path)
    async with living(quick_engine(), reopened) as client:
        batch = await once(client, batch_id)
        assert batch["status"] in ("completed", "cancelled")
        good = await outputs(client, batch["output_file_id"])
        bad = await outputs(client, batch["error_file_id"])
        # One that is cancelled before its lines have been checked has none.
        num_lines = 0 if batch["in_progress_at"] is None else NUM_LINES
        assert num_lines or batch["status"] == "cancelled"
        assert sorted([*good, *bad]) == sorted(f"c{i}" for i in range(num_lines))
        counts = batch["request_counts"]
        assert (counts["total"], counts["completed"]) == (num_lines, len(good))
        assert counts["failed"] == 0
        if batch["status"] == "completed":
            assert not bad
        await check_room(client, reopened)


async def check_room(client: httpx.AsyncClient, files: FileStore) -> None:
    """What is counted is what the files take, and nothing that was kept for later."""
    listed = (await client.get("/v1/files")).json()["data"]
    taken = 0
    for file in listed:
        parts = await files.run(partial(FileTable.part_numbers, file_id=file["id"]))
        taken += file["bytes"] + FILE_OVERHEAD + PART_OVERHEAD * len(parts)
    query = "SELECT COALESCE(SUM(size), 0) FROM batches"
    (of_batches,) = await files.run(lambda table: table.connection.execute(query).fetchone())
    assert files.table.room.num_bytes == taken + of_batches


async def test_messages_go_on_too(tmp_path: Path) -> None:
    engine = quick_engine(seconds_per_step=0.003)
    async with living(engine, store(tmp_path)) as client:
        body = {"requests": message_requests(MANY_LINES)}
        batch = (await client.post("/v1/messages/batches", json=body)).json()
        while len(engine.finished) < 60:
            await asyncio.sleep(0.005)
    after = quick_engine()
    async with living(after, store(tmp_path)) as client:
        path = f"/v1/messages/batches/{batch['id']}"
        while (batch := (await client.get(path)).json())["processing_status"] != "ended":
            await asyncio.sleep(0.005)
        assert batch["request_counts"]["succeeded"] == MANY_LINES
        results = (await client.get(path + "/results")).text.splitlines()
        assert len(results) == MANY_LINES
    assert len(after.submitted) < MANY_LINES


def test_a_signal_leaves_a_batch_to_the_next_server(tmp_path: Path) -> None:
    """Its lines under way may be answered, as any call; then the process ends, and in order."""
    options: dict[str, Any] = {"port": 0, "files_store": str(tmp_path / "files")}
    options["script"] = {"seconds_per_step": 0.01, "max_model_len": 3000}
    command = ("-m", "tests.server.serve_scripted", json.dumps(options))
    with running_process(*command) as server, openai_client(server.url()) as api:
        batch = batch_calls.begin(api, lines(300))
        found = batch_calls.once(
            lambda: api.batches.retrieve(batch.id), lambda b: b.request_counts.completed >= 5
        )
        assert found.status == "in_progress"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.stderr and "ERROR" not in server.stderr, server.stderr
    with running_process(*command) as server, openai_client(server.url()) as api:
        batch = batch_calls.ended(api, batch)
        assert (batch.status, batch.request_counts.completed) == ("completed", 300)
        assert len(batch_calls.outputs_of(api, batch.output_file_id)) == 300
