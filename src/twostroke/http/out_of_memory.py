"""Memory that has run out ends the process: what is left of it could answer nothing.

A ``MemoryError`` can strike anywhere, so what comes after it is in no state that anything promises:
locks are held, outputs are lost, and a server that goes on may neither answer nor obey a signal.
The executor is the exception. It fails the step that needs too much, and frees that.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Receive, Scope, Send

EXIT_CODE = 1
# Encoded now: there may be no memory for it then.
MESSAGE = (
    b"error: the server ran out of memory and has ended\n"
    b"\n"
    b"hint: give it more memory, or lower --max-logprobs-memory, --max-queued-requests or"
    b" --kv-cache-memory\n"
)


# Unlike `os.write` it lets no other thread run before the end: compiled code that finds no memory
# aborts the process, with another code and another message.
_write = ctypes.PyDLL(None).write


def end_process() -> NoReturn:
    """End at once; nothing that could wait for anything runs before."""
    _write(2, MESSAGE, len(MESSAGE))
    os._exit(EXIT_CODE)


@contextmanager
def ending_at_memory_error() -> Iterator[None]:
    """Ends the process where a ``MemoryError`` leaves the block."""
    try:
        yield
    except MemoryError:
        end_process()


def end_at_uncaught_memory_error() -> None:
    """Have the process end where a ``MemoryError`` ends a thread, or code that cannot raise it."""
    of_main, of_thread, unraisable = sys.excepthook, threading.excepthook, sys.unraisablehook

    def end_main(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _check(error)
        of_main(kind, error, traceback)

    def end_thread(arguments: threading.ExceptHookArgs) -> None:
        _check(arguments.exc_value)
        of_thread(arguments)

    def end_unraisable(arguments: Any) -> None:
        _check(arguments.exc_value)
        unraisable(arguments)

    sys.excepthook, threading.excepthook, sys.unraisablehook = end_main, end_thread, end_unraisable


def end_loop_at_memory_error(loop: asyncio.AbstractEventLoop) -> None:
    """Make a MemoryError in a callback of the event loop end the process, too."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        _check(context.get("exception"))
        loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


class EndAtMemoryError:
    """Around the whole application: uvicorn would log the error, answer 500 and go on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ending_at_memory_error():
            await self._app(scope, receive, send)


def _check(error: BaseException | None) -> None:
    if isinstance(error, MemoryError):
        end_process()
