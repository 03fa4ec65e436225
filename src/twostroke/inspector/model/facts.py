"""The facts of the model at hand, found once, when they are first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from twostroke.engine.clients.base import EngineClient
from twostroke.engine.executor import ExecutorInfo
from twostroke.questions.model_facts import ModelFacts

# What is known of a loaded model, from what its executor says; it may read files.
DescribeModel = Callable[[ExecutorInfo], ModelFacts]
FindFacts = Callable[[], Awaitable[ModelFacts | None]]


def find_once(describe: DescribeModel | None, client: Callable[[], EngineClient]) -> FindFacts:
    """Asks ``describe`` when somebody first wants to know, on a thread of its own.

    Args:
        client: The engine; raises until it is loaded, and so does what is returned.
    """
    asked: asyncio.Future[ModelFacts] | None = None

    async def find() -> ModelFacts | None:
        nonlocal asked
        info = client().info
        if describe is None:
            return None
        if asked is None or (asked.done() and asked.exception() is not None):
            asked = asyncio.ensure_future(asyncio.to_thread(describe, info))
        return await asyncio.shield(asked)

    return find
