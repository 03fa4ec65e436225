"""One server process: bind, load the model while the HTTP stack imports, serve, drain, exit."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, ModelLoadError, TwostrokeError, panic_text
from twostroke.core.freed_memory import share_heaps
from twostroke.gateway.options import GatewayOptions
from twostroke.http.out_of_memory import EndAtMemoryError, end_at_uncaught_memory_error
from twostroke.http.tls import ServerTls, TlsFiles
from twostroke.observability.json_log import log_to_stderr
from twostroke.server.generation.request_log import LOGGER as REQUEST_LOGGER
from twostroke.server.options import ServerOptions

if TYPE_CHECKING:
    from twostroke.engine.clients.loaded_model import LoadedModel
    from twostroke.gateway.gateway import Gateway
    from twostroke.inspector.content import ContentBook
    from twostroke.inspector.model.facts import DescribeModel
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.server.state.loading_note import LoadingNote

# How long a thread that parses a body may keep the interpreter from the engine's, which asks for it
# many times a step. Python's own 5 ms would add up to a multiple of a step.
SWITCH_SECONDS = 0.0005
# Bytes of an answer that the kernel keeps while the client's machine takes no more: some megabytes
# by default, so that one that does not read would be taken for one that does.
MAX_NOT_SENT = 16_384
CHECK = "the checkpoint may be broken: download it again"
Loader = Callable[[EngineConfig], "LoadedModel"]


class ModelToLoad(NamedTuple):
    """A model that the server is to have, and what loads it."""

    config: EngineConfig
    load: Loader

    def for_keys(self) -> ModelToLoad:
        """Schedule as a server does that asks for keys."""
        return self._replace(
            config=replace(self.config, scheduler=self.config.scheduler.for_keys())
        )


def run_server(
    config: EngineConfig,
    options: ServerOptions,
    load: Loader,
    gateway_options: GatewayOptions | None = None,
    tracer: Tracer | None = None,
    load_ranker: Loader | None = None,
    content: ContentBook | None = None,
    describe_model: DescribeModel | None = None,
    beside: Mapping[str, ModelToLoad] | None = None,
    note: LoadingNote | None = None,
    reload: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal ends it.

    The first SIGTERM, SIGINT or SIGHUP drains: new work gets a 503, running requests may finish for
    ``shutdown_timeout`` seconds. The second ends the process at once, unless it is a SIGHUP.

    Args:
        load: Loads the model, on a thread of its own.
        gateway_options: Keys and limits; by default there are none.
        tracer: Traces the calls, if they are to be; ``load`` gives its observer to the engine.
        load_ranker: Loads the model of ``--context-ranker``, if it is not the served one.
        content: Keeps prompts and answers for the inspector, if they are to be shown; ``load``
            gives it to the engine.
        describe_model: Tells the inspector of the loaded model.
        beside: Further models by name, loaded after it one by one.
        note: Says what loading waits for.
        reload: What SIGHUP asks for instead; see ``run_until_signalled``.

    Raises:
        ConfigError: The address cannot be bound, or a file of keys, certificates, responses or
            files not be used.
        TwostrokeError: The model cannot be loaded.
    """
    from twostroke.gateway.gateway import Gateway
    from twostroke.server.files.store import FileStore
    from twostroke.server.responses.store import ResponseStore

    tls = server_tls(options)
    gateway = Gateway(gateway_options or GatewayOptions())
    store = ResponseStore(options.responses_store, options.responses_store_size)
    files = FileStore(options.files_store, options.files_store_size)
    models = [ModelToLoad(config, load), *(beside or {}).values()]
    listener = listen(options)
    _set_up_process(options)
    loading, loading_ranker = _begin_loading(models, load_ranker, gateway)
    # Imported while the model loads on its thread; half a second in all.
    from twostroke.server.application import create_app_for
    from twostroke.server.http.lifecycle import run_until_signalled
    from twostroke.server.state.server_state import ServerState

    options = options.named(config.model.model)
    loading_beside = dict(zip(beside or {}, loading[1:], strict=True))
    state = ServerState(loading[0], options, loading_ranker, loading_beside, note)
    app = EndAtMemoryError(
        create_app_for(state, options, gateway, store, tracer, content, describe_model, files)
    )
    run_until_signalled(app, state, options, listener, gateway.asks_for_keys, tls, reload)
    _end_engines([*loading, *filter(None, [loading_ranker])], tracer, options.uds)


def _set_up_process(options: ServerOptions) -> None:
    """What holds for all threads, before there are others."""
    configure_logging(options)
    end_at_uncaught_memory_error()
    sys.setswitchinterval(SWITCH_SECONDS)
    share_heaps()


def server_tls(options: ServerOptions) -> ServerTls | None:
    """What ``--ssl-certfile`` and its kin ask for; ``None`` without.

    Raises:
        ConfigError: A file cannot be used.
    """
    if options.ssl_certfile is None:
        return None
    files = TlsFiles(
        certificate=options.ssl_certfile,
        key=options.ssl_keyfile or options.ssl_certfile,
        password=options.ssl_keyfile_password,
        ca_certs=options.ssl_ca_certs,
        cert_reqs=ssl.VerifyMode(options.ssl_cert_reqs),
        ciphers=options.ssl_ciphers,
    )
    return ServerTls(files, follows_files=options.enable_ssl_refresh)


def _begin_loading(
    models: Sequence[ModelToLoad], load_ranker: Loader | None, gateway: Gateway
) -> tuple[list[Future[LoadedModel]], Future[LoadedModel] | None]:
    """The served models one after another, once the ranker is loaded, if there is one."""
    if gateway.asks_for_keys:
        models = [each.for_keys() for each in models]
    ranker = None if load_ranker is None else load_on_thread(models[0].config, load_ranker)
    former, loading = ranker, []
    for config, load in models if len(models) == 1 else map(naming_the_model, models):
        former = load_on_thread(config, load if former is None else after(former, load))
        loading.append(former)
    return loading, ranker


def _end_engines(
    loading: Sequence[Future[LoadedModel]], tracer: Tracer | None, uds: str | None
) -> None:
    """End them; the whole process, if a model is still being loaded. Then the traces are sent."""
    if uds is not None:
        Path(uds).unlink(missing_ok=True)
    failures = [error for f in loading if f.done() and (error := f.exception()) is not None]
    if not failures and not all(future.done() for future in loading):
        # The interpreter cannot be torn down under a thread that is importing torch.
        sys.stderr.flush()
        os._exit(0)
    loaded = [f.result() for f in loading if f.done() and f.exception() is None]
    with ThreadPoolExecutor() as threads:  # each may wait for a process
        for closed in [threads.submit(model.client.close) for model in loaded]:
            closed.result()
    if failures:
        raise failures[0]
    if tracer is not None:
        tracer.close()


def naming_the_model(model: ModelToLoad) -> ModelToLoad:
    """What goes wrong says of which model, since there are several."""

    def load(config: EngineConfig) -> LoadedModel:
        try:
            return model.load(config)
        except TwostrokeError as error:
            error.message = f"{config.model.model}: {error.message}"
            error.args = (error.message,)
            raise

    return model._replace(load=load)


def after(other: Future[LoadedModel], load: Loader) -> Loader:
    """``load``, once the other model is there: its cache takes what memory is left."""

    def load_then(config: EngineConfig) -> LoadedModel:
        other.result()
        return load(config)

    return load_then


def listen(options: ServerOptions) -> socket.socket:
    """A listening socket; connections made before the server runs wait in its backlog.

    Raises:
        ConfigError: The address is taken, forbidden or unknown.
    """
    if options.uds is not None:
        return _listen_on_path(options.uds)
    address = f"{options.host}:{options.port}"
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have it from their listener
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_NOT_SENT)
        return listener
    except OSError as error:
        hint = "give an address of this machine as --host, or another --port"
        if options.port and error.errno == errno.EADDRINUSE:
            hint = (
                "stop the process that listens there, or give another port: --port"
                f" {options.port % 65535 + 1}"
            )
        raise ConfigError(f"cannot listen on {address}: {_reason(error)}", hint=hint) from error


def _listen_on_path(path: str) -> socket.socket:
    """A Unix domain socket; one that a server has left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A file that is no socket stays, and the next line fails on it.
        if Path(path).is_socket() and listener.connect_ex(path) == errno.ECONNREFUSED:
            Path(path).unlink()
        listener.bind(path)
    except OSError as error:
        listener.close()
        hint = "give another path as --uds, or stop the process that listens there"
        raise ConfigError(f"cannot listen on {path}: {_reason(error)}", hint=hint) from error
    listener.listen(2048)
    return listener


def _reason(error: OSError) -> str:
    # `create_server` adds the address to the text, which the message has already. Resolvers'
    # numbers are no errno.
    return str(error.strerror or error).partition(" (while attempting")[0]


def load_on_thread(config: EngineConfig, load: Loader) -> Future[LoadedModel]:
    """Start loading; the thread is a daemon, so that a signal need not wait for it."""
    future: Future[LoadedModel] = Future()
    # Running, so that it is not cancelled where the wait for it is.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(load(config))
        except MemoryError:
            raise
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # nothing would catch it, and the server wait for ever
            failure = ModelLoadError(f"loading the model failed: {panic_text(error)}", hint=CHECK)
            failure.__cause__ = error
            future.set_exception(failure)

    threading.Thread(target=run, name="twostroke-load", daemon=True).start()
    return future


def configure_logging(options: ServerOptions) -> None:
    """Everything to stderr; of libraries only warnings, unless the options ask for more."""
    log_to_stderr(options.log_level, options.log_format)
    for library in ("uvicorn", "httpx"):  # httpx tells of each line of a batch
        logging.getLogger(library).setLevel("INFO" if options.log_level == "debug" else "WARNING")
    # Whatever is wrong with a form is the client's mistake, and in its answer.
    logging.getLogger("python_multipart").setLevel("ERROR")
    logging.getLogger(REQUEST_LOGGER).setLevel("INFO" if options.enable_log_requests else "WARNING")
