"""Very many streams at the same time, from a client that costs little itself."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit


async def outcomes(
    url: str, body: dict[str, Any], streams: int, timeout: float = 120.0
) -> Counter[str]:
    """How so many equal calls of ``/v1/completions``, all sent at once, have ended.

    ``whole``: 200, and all up to the last event. Else the status, or what was wrong.
    """
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    content = json.dumps({**body, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    every_connection = asyncio.Barrier(streams)

    async def ask() -> str:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await every_connection.wait()
            writer.write(head.encode() + content)
            answer = (await reader.read()).decode()
        finally:
            writer.close()
        status = answer.split(maxsplit=2)[1] if answer else "hung up"
        if status != "200":
            return status
        if '"error"' in answer:
            return "error"
        return "whole" if "data: [DONE]" in answer else "cut off"

    async with asyncio.timeout(timeout):
        return Counter(await asyncio.gather(*(ask() for _ in range(streams))))
