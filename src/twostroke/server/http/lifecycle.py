"""uvicorn, but it announces when it is ready, and drains on a signal; a second one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from twostroke.http.accepting import Acceptor
from twostroke.http.closing_server import ClosingServer
from twostroke.http.connection import BoundedConfig, BoundedProtocol
from twostroke.http.foreign_hosts import HostCheck, OwnNames
from twostroke.http.out_of_memory import end_loop_at_memory_error, ending_at_memory_error
from twostroke.http.tls import ServerTls
from twostroke.server.banner import ready_banner
from twostroke.server.http.errors import error_response
from twostroke.server.options import ServerOptions
from twostroke.server.state.server_state import ServerState

logger = logging.getLogger(__name__)

# Connections that outlive the drain (their clients read slowly) are cut after this many seconds.
CLOSE_TIMEOUT = 5
# Longer than clients and proxies keep idle connections (httpx 5 s, nginx and AWS 60 s): a request
# is lost where the server closes first.
KEEP_ALIVE_SECONDS = 75
REFRESH_TICKS = 10  # ten a second


def run_until_signalled(
    app: ASGIApp,
    state: ServerState,
    options: ServerOptions,
    listener: socket.socket,
    asks_for_keys: bool,
    tls: ServerTls | None = None,
    reload: Callable[[], None] | None = None,
) -> None:
    """Serve on ``listener`` until a signal has been obeyed; raises the error of a failed load.

    Args:
        reload: What SIGHUP asks for, while there is a terminal or there never was one. It is short.
    """
    config = uvicorn_config(app, options)
    server = DrainingServer(
        config, state, options, asks_for_keys=asks_for_keys, tls=tls, reload=reload
    )
    server.run(sockets=[listener])
    if state.load_error is not None:
        raise state.load_error


def uvicorn_config(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    """uvicorn's settings for an application, and what stands before it on a network."""
    proxies = ["*"] if "*" in options.forwarded_allow_ips else [*options.forwarded_allow_ips]
    own = own_names(options)
    return BoundedConfig(
        HostCheck(app, own, error_response) if own.need_check() else app,
        refuse=error_response,
        client_timeout=options.client_timeout,
        min_client_rate=options.min_client_rate,
        http=BoundedProtocol,
        loop="uvloop",
        ws="none",
        log_config=None,
        access_log=False,  # ours has the request's id and its seconds
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_TIMEOUT,
        server_header=False,
        # By default uvicorn believes whatever comes from 127.0.0.1, or the environment names.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
    )


def own_names(options: ServerOptions) -> OwnNames:
    """Under which names the server answers."""
    return OwnNames(
        host=options.host,
        allowed_hosts=options.allowed_hosts,
        allowed_origins=options.allowed_origins,
    )


class DrainingServer(ClosingServer):
    """Replaces uvicorn's signals, which would cut running requests and end the process."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        options: ServerOptions,
        *,
        asks_for_keys: bool,
        tls: ServerTls | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._reload = None if reload is None else OnHangUp(reload)
        self._asks_for_keys = asks_for_keys
        self._tls = tls
        self._state = state
        self._options = options
        self._signalled = False
        self._announcement: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGHUP (the terminal is gone) as well, unless it is ignored, as ``nohup`` asks."""
        with super().capture_signals():
            captures = threading.current_thread() is threading.main_thread() and (
                self._reload is not None or not ignores_hang_up()
            )
            previous = signal.signal(signal.SIGHUP, self.handle_exit) if captures else None
            try:
                yield
            finally:
                if captures:
                    signal.signal(signal.SIGHUP, previous)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """May run between any two bytecodes of the main thread, so it only sets flags."""
        if sig == signal.SIGHUP and self._reload is not None and self._reload.note():
            return
        if self._signalled:
            if sig == signal.SIGHUP:  # shell and kernel each send one
                return
            with contextlib.suppress(OSError):
                os.write(2, b"exiting at once\n")
            os._exit(128 + sig)
        self._signalled = True
        self._state.begin_drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        end_loop_at_memory_error(asyncio.get_running_loop())
        await super().startup([])
        assert sockets
        for listener in sockets:
            # uvicorn asks no more of it than to close.
            acceptor = Acceptor(
                listener, self._make_protocol, self._tls, self._options.client_timeout
            )
            self.servers.append(cast(asyncio.Server, acceptor))
        self._announcement = asyncio.ensure_future(
            self._announce(base_url(sockets[0], self._options))
        )

    async def main_loop(self) -> None:
        with ending_at_memory_error():
            await super().main_loop()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._reload is not None:
            self._reload.obey()
        if self._signalled and self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_and_exit())
        if self._tls is not None and counter % REFRESH_TICKS == 0:
            self._tls.refresh()
        return await super().on_tick(counter)

    def _make_protocol(self) -> asyncio.Protocol:
        return BoundedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def _announce(self, url: str) -> None:
        await self._state.settled.wait()
        if self._state.load_error is not None:
            self.should_exit = True
        else:
            keep_start_up_for_good()
            banner = ready_banner(
                self._state.model(),
                url,
                asks_for_keys=self._asks_for_keys,
                traces_endpoint=self._options.otlp_traces_endpoint,
                slow_ttft=self._options.otlp_traces_slow_ttft,
                has_inspector=self._options.inspector,
                certificate=self._options.ssl_certfile,
            )
            self._report(banner)

    def _report(self, text: str) -> None:
        """Write to the terminal, or where all is JSON to the log."""
        if self._options.log_format == "json":
            logger.info("%s", text)
            return
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(text, file=sys.stderr, flush=True)

    async def _drain_and_exit(self) -> None:
        num_unfinished = self._state.num_unfinished()
        if num_unfinished:
            seconds = self._options.shutdown_timeout
            self._report(
                f"draining: {num_unfinished} unfinished, may go on within {seconds:g} s; signal"
                " again to exit at once"
            )
        try:
            await self._state.drain()
        finally:
            self.should_exit = True


class OnHangUp:
    """Tells SIGHUP as an order from that of a terminal which is gone."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self._reload, self._noted = reload, False
        self._heeds_terminal = has_terminal() and not ignores_hang_up()

    def note(self) -> bool:
        """Whether it is an order; for the signal's handler."""
        self._noted = not self._heeds_terminal or has_terminal()
        return self._noted

    def obey(self) -> None:
        """Do what was asked for since the last time, if anything was."""
        noted, self._noted = self._noted, False
        if noted:
            self._reload()


def ignores_hang_up() -> bool:
    """Whether this process was started to outlive its terminal, as ``nohup`` does."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def has_terminal() -> bool:
    """Whether this process has a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def keep_start_up_for_good() -> None:
    """Exempt what exists from later garbage collections, which stop all threads while they last.

    Imports and the model leave objects that stay until the process ends. A full collection, which a
    body of many small lists sets off, looked at them for 50 ms (docs/lab/http-path.md).
    """
    gc.collect()
    gc.freeze()


def base_url(listener: socket.socket, options: ServerOptions) -> str:
    """An address at which this machine reaches the server; with ``--uds``, ``unix:PATH``."""
    scheme = "http" if options.ssl_certfile is None else "https"
    if options.uds is not None:
        return f"unix:{options.uds}"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(options.host, options.host)
    port = listener.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
