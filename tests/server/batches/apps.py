"""The application with its whole life, called without a network: begun, ended, begun again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.server.batches.batch_calls import CHAT, ENDED
from tests.server.scripted import ScriptedEngine
from twostroke.gateway.gateway import Gateway
from twostroke.server.application import create_app_for
from twostroke.server.files.store import FileStore
from twostroke.server.options import ServerOptions
from twostroke.server.state.server_state import ServerState

Headers = Mapping[str, str] | None


@asynccontextmanager
async def living(
    engine: ScriptedEngine,
    files: FileStore,
    gateway: Gateway | None = None,
    **options: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that goes on with what it finds in the store."""
    settings = ServerOptions(**{"served_model_name": ("scripted",), **options})
    app = create_app_for(
        ServerState(engine.loaded_model(), settings), settings, gateway, files=files
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


async def upload(client: httpx.AsyncClient, content: bytes, headers: Headers = None) -> str:
    response = await client.post(
        "/v1/files",
        files={"file": ("in.jsonl", content)},
        data={"purpose": "batch"},
        headers=headers,
    )
    assert response.status_code == 200, response.text
    file_id: str = response.json()["id"]
    return file_id


async def begin(client: httpx.AsyncClient, content: bytes, headers: Headers = None) -> str:
    """A batch over a new file."""
    body = {
        "input_file_id": await upload(client, content, headers),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    response = await client.post("/v1/batches", json=body, headers=headers)
    assert response.status_code == 200, response.text
    batch_id: str = response.json()["id"]
    return batch_id


async def once(
    client: httpx.AsyncClient,
    batch_id: str,
    condition: Callable[[dict[str, Any]], bool] = lambda batch: batch["status"] in ENDED,
    seconds: float = 60,
    headers: Headers = None,
) -> dict[str, Any]:
    """The batch, as soon as it meets a condition."""
    deadline = time.monotonic() + seconds
    while True:
        response = await client.get(f"/v1/batches/{batch_id}", headers=headers)
        batch: dict[str, Any] = response.json()
        assert response.status_code == 200, response.text
        if condition(batch):
            return batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.005)


async def outputs(
    client: httpx.AsyncClient, file_id: str | None, headers: Headers = None
) -> dict[str, dict[str, Any]]:
    """The lines of a file of output, by their custom_ids."""
    if file_id is None:
        return {}
    response = await client.get(f"/v1/files/{file_id}/content", headers=headers)
    assert response.status_code == 200, response.text
    parsed = [json.loads(text) for text in response.text.splitlines()]
    assert len({output["custom_id"] for output in parsed}) == len(parsed)
    return {output["custom_id"]: output for output in parsed}
