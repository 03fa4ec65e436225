"""uvicorn with our life: announce when ready, drain on the first signal, exit at once on the
second.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from concurrent.futures import Future
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from twostroke.gateway.gateway import Gateway
from twostroke.server.app import create_app_for
from twostroke.server.banner import ready_banner
from twostroke.server.connection import BoundedProtocol
from twostroke.server.options import ServerOptions
from twostroke.server.serving import OwnedEngine, Serving

# Connections that outlive the drain (their clients read slowly) are cut after this many seconds.
CLOSE_TIMEOUT = 5
# Longer than clients and proxies keep idle connections (httpx 5 s, nginx and AWS 60 s): who closes
# first loses nothing.
KEEP_ALIVE_SECONDS = 75


def run_until_signalled(
    loading: Future[OwnedEngine], options: ServerOptions, listener: socket.socket, gateway: Gateway
) -> None:
    """Serve on ``listener`` until a signal has been obeyed; raises the error of a failed load."""
    serving = Serving(loading, options)
    config = uvicorn_config(create_app_for(serving, options, gateway), options)
    DrainingServer(config, serving, options, keyed=gateway.asks_for_keys).run(sockets=[listener])
    if serving.load_error is not None:
        raise serving.load_error
    if not loading.done():
        # The interpreter cannot be torn down under a thread that is importing torch.
        sys.stderr.flush()
        os._exit(0)
    loading.result().close()


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
    """Replaces uvicorn's signals, which would cut running requests and end the process by the
    signal itself.
    """

    def __init__(
        self, config: uvicorn.Config, serving: Serving, options: ServerOptions, *, keyed: bool
    ) -> None:
        super().__init__(config)
        self._keyed = keyed
        self._serving = serving
        self._options = options
        self._signalled = False
        self._announcement: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """May run between any two bytecodes of the main thread, so it sets flags and nothing
        more.
        """
        if self._signalled:
            os.write(2, b"exiting at once\n")
            os._exit(128 + sig)
        self._signalled = True
        self._serving.begin_drain()

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
        await self._serving.settled.wait()
        if self._serving.load_error is not None:
            self.should_exit = True
        else:
            _say(ready_banner(self._serving.loaded(), url, keyed=self._keyed))

    async def _drain_and_exit(self) -> None:
        running = self._serving.num_unfinished()
        if running:
            seconds = self._options.shutdown_timeout
            _say(
                f"draining: {running} unfinished, may go on within {seconds:g} s; signal again to"
                " exit at once"
            )
        try:
            await self._serving.drain()
        finally:
            self.should_exit = True


def base_url(listener: socket.socket, options: ServerOptions) -> str:
    """An address at which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(options.host, options.host)
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
