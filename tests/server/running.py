"""Real servers on loopback: on a thread of the test's process, or as a process of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.gateway.gateway import Gateway
from twostroke.http.closing_server import ClosingServer
from twostroke.inspector.content import ContentBook
from twostroke.inspector.model.facts import DescribeModel
from twostroke.observability.tracing.tracer import Tracer
from twostroke.server.application import create_app
from twostroke.server.http.lifecycle import uvicorn_config
from twostroke.server.options import ServerOptions
from twostroke.server.process import listen

ROOT = Path(__file__).parents[2]
PATIENCE = 150.0  # seconds: beside others' work Ray takes 40 to start two replicas, and more


class Loadable(Protocol):
    """An engine, real or scripted, that knows what a front end needs beside it."""

    def loaded_model(self) -> LoadedModel: ...


@contextmanager
def running_server(
    engine: Loadable,
    *,
    gateway: Gateway | None = None,
    tracer: Tracer | None = None,
    ranker: Loadable | None = None,
    content: ContentBook | None = None,
    describe_model: DescribeModel | None = None,
    **options: object,
) -> Iterator[str]:
    """The base URL of a server for ``engine``."""
    # Requests that tests write by hand call the server x.
    fields: dict[str, Any] = {
        "port": 0,
        "served_model_name": ("scripted",),
        "allowed_hosts": ("x",),
    }
    fields |= options
    settings = ServerOptions(**fields)
    listener = listen(settings)
    port = listener.getsockname()[1]
    ranking = None if ranker is None else ranker.loaded_model()
    model = engine.loaded_model()
    app = create_app(model, settings, gateway, tracer, ranking, content, describe_model)
    config = uvicorn_config(app, settings)
    server = ClosingServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=10)


def wait_until(
    condition: Callable[[], bool],
    seconds: float = PATIENCE,
    why: Callable[[], str] = lambda: "timed out",
) -> None:
    """Poll a callable until it is true; ``why`` says what there is instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.005)


class ServerProcess:
    """A child process and what it has written to stderr."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.stderr = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def url(self) -> str:
        """Where it listens, once it is ready."""
        wait_until(self._is_ready, PATIENCE, lambda: f"not ready; it wrote: {self.stderr!r}")
        match = re.search(r"https?://127.0.0.1:\d+", self.stderr)
        assert match is not None
        return match[0]

    def end(self, seconds: float = 10.0) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def _is_ready(self) -> bool:
        if "curl" in self.stderr and self.stderr.endswith("\n"):
            return True
        assert self.process.poll() is None, f"it has ended; it wrote: {self.stderr!r}"
        return False

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line


@contextmanager
def running_process(*arguments: str) -> Iterator[ServerProcess]:
    """``python ARGUMENTS``, killed at the end; it must have written nothing to stdout."""
    server = ServerProcess(*arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.end(60)  # a loaded machine takes its time to free what a process had
        assert server.process.stdout is not None
        # The tokenizer's trainer, which only the scripted engine runs, writes empty lines.
        assert server.process.stdout.read().strip() == ""
        server.process.stdout.close()
        assert server.process.stderr is not None
        server.process.stderr.close()
