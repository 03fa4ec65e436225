"""Has the event loop's thread do something, from another thread that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

POLL_SECONDS = 0.1
T = TypeVar("T")


def do_on_loop(
    loop: asyncio.AbstractEventLoop | None, do: Callable[[], T], is_over: Callable[[], bool]
) -> T | None:
    """What ``do`` returns, or raises; called here where no loop runs.

    Args:
        is_over: Asked while it waits: whether not to wait any more, and return ``None``.
    """
    if loop is None or not loop.is_running():
        return do()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(do())
        except BaseException as error:
            done.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
    except RuntimeError:  # it was closed meanwhile
        return do()
    while True:
        try:
            return done.result(POLL_SECONDS)
        except TimeoutError:
            if is_over() or not loop.is_running():
                return None
