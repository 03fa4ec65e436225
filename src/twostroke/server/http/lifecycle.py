"""uvicorn, but it announces when it is ready, and drains on a signal; a second one ends it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from twostroke.server.banner import ready_banner
from twostroke.server.http.connection import BoundedProtocol
from twostroke.server.options import ServerOptions
from twostroke.server.state.server_state import ServerState

# Connections that outlive the drain (their clients read slowly) are cut after this many seconds.
CLOSE_TIMEOUT = 5
# Longer than clients and proxies keep idle connections (httpx 5 s, nginx and AWS 60 s): a request
# is lost where the server closes first.
KEEP_ALIVE_SECONDS = 75


def run_until_signalled(
    app: ASGIApp,
    state: ServerState,
    options: ServerOptions,
    listener: socket.socket,
    *,
    asks_for_keys: bool,
) -> None:
    """Serve on ``listener`` until a signal has been obeyed; raises the error of a failed load."""
    config = uvicorn_config(app, options)
    DrainingServer(config, state, options, asks_for_keys=asks_for_keys).run(sockets=[listener])
    if state.load_error is not None:
        raise state.load_error


def uvicorn_config(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    """uvicorn's settings for an application."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        loop="uvloop",
        ws="none",
        log_config=None,
        access_log=options.access_log,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_TIMEOUT,
        server_header=False,
    )


class DrainingServer(uvicorn.Server):
    """Replaces uvicorn's signals, which would cut running requests and end the process."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        options: ServerOptions,
        *,
        asks_for_keys: bool,
    ) -> None:
        super().__init__(config)
        self._asks_for_keys = asks_for_keys
        self._state = state
        self._options = options
        self._signalled = False
        self._announcement: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """May run between any two bytecodes of the main thread, so it only sets flags."""
        if self._signalled:
            os.write(2, b"exiting at once\n")
            os._exit(128 + sig)
        self._signalled = True
        self._state.begin_drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        self._announcement = asyncio.ensure_future(
            self._announce(base_url(sockets[0], self._options))
        )

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._signalled and self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_and_exit())
        return await super().on_tick(counter)

    async def _announce(self, url: str) -> None:
        await self._state.settled.wait()
        if self._state.load_error is not None:
            self.should_exit = True
        else:
            _report(ready_banner(self._state.model(), url, asks_for_keys=self._asks_for_keys))

    async def _drain_and_exit(self) -> None:
        num_unfinished = self._state.num_unfinished()
        if num_unfinished:
            seconds = self._options.shutdown_timeout
            _report(
                f"draining: {num_unfinished} unfinished, may go on within {seconds:g} s; signal"
                " again to exit at once"
            )
        try:
            await self._state.drain()
        finally:
            self.should_exit = True


def base_url(listener: socket.socket, options: ServerOptions) -> str:
    """An address at which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(options.host, options.host)
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
