"""A real uvicorn on loopback, on a thread of the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from twostroke.engine.client import EngineClient
from twostroke.server.app import create_app
from twostroke.server.options import ServerOptions
from twostroke.server.serve import listen


@contextmanager
def running_server(client: EngineClient, **options: object) -> Iterator[str]:
    """The base URL of a server for ``client``."""
    settings = ServerOptions(**{"port": 0, "served_model_name": ("scripted",), **options})  # type: ignore[arg-type]
    listener = listen(settings)
    port = listener.getsockname()[1]
    config = uvicorn.Config(create_app(client, settings), http="httptools", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=10)


def wait_until(condition: object, seconds: float = 5.0) -> None:
    """Poll a callable until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)
