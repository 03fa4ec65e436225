"""The page over recorded files, served on a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.inspector.recorded import recording
from twostroke.inspector.recording import Recording
from twostroke.inspector.source import Kind
from twostroke.server.inspecting import create_inspecting_app, serving
from twostroke.server.options import ServerOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from twostroke.questions.model_facts import ModelFacts


@contextmanager
def page_over(app: ASGIApp) -> Iterator[str]:
    """The page's address in an application that serves it."""
    server, listener, address = serving(app, ServerOptions(port=0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@contextmanager
def page_of(source: Recording, facts: ModelFacts | None = None) -> Iterator[str]:
    """The page's address over a recording, which is closed at the end."""
    with page_over(create_inspecting_app(source, facts=facts)) as address:
        try:
            yield address
        finally:
            source.close()


@contextmanager
def showing(kind: Kind, path: Path | None = None, facts: ModelFacts | None = None) -> Iterator[str]:
    """The page's address over a file, by default that of a small run."""
    with page_of(Recording(path or recording(), kind), facts) as address:
        yield address
