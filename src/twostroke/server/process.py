"""One server process: bind, load the model while the HTTP stack imports, serve, drain, exit."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.gateway.options import GatewayOptions
from twostroke.server.generation.request_log import LOGGER as REQUEST_LOGGER
from twostroke.server.options import ServerOptions

if TYPE_CHECKING:
    from twostroke.server.state.server_state import OwnedEngine

Loader = Callable[[EngineConfig], "OwnedEngine"]


def run_server(
    config: EngineConfig,
    options: ServerOptions,
    load: Loader,
    gateway_options: GatewayOptions | None = None,
) -> None:
    """Serve until a signal ends it.

    The first SIGTERM or SIGINT drains: new work gets a 503, running requests may finish for
    ``shutdown_timeout`` seconds. The second ends the process at once.

    Args:
        load: Loads the engine, on a thread of its own.
        gateway_options: Keys and limits; by default there are none.

    Raises:
        ConfigError: The address cannot be bound, or the file of keys not be used.
        TwostrokeError: The model cannot be loaded.
    """
    from twostroke.gateway.gateway import Gateway

    gateway = Gateway(gateway_options or GatewayOptions())
    listener = listen(options)
    configure_logging(options)
    names = options.served_model_name or (config.model.model,)
    loading = load_on_thread(config, load)
    # Imported while the model loads on its thread; half a second in all.
    from twostroke.server.application import create_app_for
    from twostroke.server.http.lifecycle import run_until_signalled
    from twostroke.server.state.server_state import ServerState

    options = replace(options, served_model_name=names)
    state = ServerState(loading, options)
    app = create_app_for(state, options, gateway)
    run_until_signalled(app, state, options, listener, asks_for_keys=gateway.asks_for_keys)
    if not loading.done():
        # The interpreter cannot be torn down under a thread that is importing torch.
        sys.stderr.flush()
        os._exit(0)
    loading.result().close()


def listen(options: ServerOptions) -> socket.socket:
    """A listening socket; connections made before the server runs wait in its backlog.

    Raises:
        ConfigError: The address is taken, forbidden or unknown.
    """
    address = f"{options.host}:{options.port}"
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        hint = "give an address of this machine as --host, or another --port"
        if options.port and error.errno == errno.EADDRINUSE:
            hint = (
                "stop the process that listens there, or give another port: --port"
                f" {options.port % 65535 + 1}"
            )
        raise ConfigError(f"cannot listen on {address}: {_reason(error)}", hint=hint) from error


def _reason(error: OSError) -> str:
    # `create_server` adds the address to the text, which the message has already. Resolvers'
    # numbers are no errno.
    return str(error.strerror or error).partition(" (while attempting")[0]


def load_on_thread(config: EngineConfig, load: Loader) -> Future[OwnedEngine]:
    """Start loading; the thread is a daemon, so that a signal need not wait for it."""
    future: Future[OwnedEngine] = Future()
    # Running, so that it is not cancelled where the wait for it is.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(load(config))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="twostroke-load", daemon=True).start()
    return future


def configure_logging(options: ServerOptions) -> None:
    """Everything to stderr; of uvicorn only warnings, unless the options ask for more."""
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(
        stream=sys.stderr, level=options.log_level.upper(), format=layout, force=True
    )
    logging.getLogger("uvicorn").setLevel("INFO" if options.log_level == "debug" else "WARNING")
    logging.getLogger("uvicorn.access").setLevel("INFO" if options.access_log else "WARNING")
    logging.getLogger(REQUEST_LOGGER).setLevel("INFO" if options.enable_log_requests else "WARNING")
