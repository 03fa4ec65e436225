"""uvicorn's server, of which no connection is left when it ends."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Turns of the event loop that an aborted connection gets to be gone; it takes two.
_MAX_TURNS = 100


class ClosingServer(uvicorn.Server):
    """Aborts the connections that outlast the time for a graceful end.

    A client may go on sending what is thrown away (``lingering``). An event loop of uvloop cannot
    be closed beside an open connection, so the process would end with a traceback.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            cast(HttpToolsProtocol, connection).transport.abort()
        for _ in range(_MAX_TURNS):
            if not self.server_state.connections:
                break
            await asyncio.sleep(0)
