"""Compiling beside the event loop: it goes on, and no tenant waits for what others compile."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.constraints import walks
from tests.constraints.test_compiler import SlowCompiler
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.compiling.compile_threads import CompileThreads
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams


async def test_the_event_loop_goes_on_and_a_slow_one_is_given_up() -> None:
    compiler = SlowCompiler()
    threads = CompileThreads(compiler, seconds=0.2)
    slow = asyncio.create_task(threads.compile(StructuredOutputsParams(regex="a")))
    turns = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(InvalidRequestError, match=r"structured_outputs.regex took longer than 0.2"):
        slow.result()
    assert turns > 5
    compiler.may_go_on.set()
    await threads.compile(StructuredOutputsParams(regex="b"))


async def test_what_nothing_waits_for_is_not_begun() -> None:
    """A client that leaves takes its compilation along, unless that runs already."""
    compiler = SlowCompiler()
    threads = CompileThreads(compiler, seconds=5)
    running = [
        asyncio.create_task(threads.compile(StructuredOutputsParams(regex=text)))
        for text in "abcdef"
    ]
    await asyncio.sleep(0.05)
    for task in running[2:]:
        task.cancel()
    await asyncio.wait(running[2:])
    compiler.may_go_on.set()
    await asyncio.gather(*running[:2])
    await threads.compile(StructuredOutputsParams(regex="z"))
    assert compiler.num_built == 3


async def test_who_leaves_takes_no_compilation_from_others_who_want_the_same() -> None:
    compiler = SlowCompiler()
    threads = CompileThreads(compiler, seconds=5)
    blocking = [
        asyncio.create_task(threads.compile(StructuredOutputsParams(regex=text))) for text in "ab"
    ]
    wanted = StructuredOutputsParams(regex="c")
    leaves, stays = (asyncio.create_task(threads.compile(wanted)) for _ in range(2))
    await asyncio.sleep(0.05)
    leaves.cancel()
    await asyncio.wait([leaves])
    compiler.may_go_on.set()
    await asyncio.gather(*blocking, stays)
    assert compiler.num_built == 3


async def test_what_is_kept_waits_for_nothing() -> None:
    """Eighty new forms of one key, and a form that another key has used before."""
    compiler = GrammarCompiler(walks.tokenizer())
    threads = CompileThreads(compiler, seconds=60)
    kept = StructuredOutputsParams(json={"enum": ["kept"]})
    await threads.compile(kept, "light")
    values = [f"value {n}" for n in range(1500)]
    heavy = [
        asyncio.create_task(
            threads.compile(StructuredOutputsParams(json={"enum": [*values, f"own {n}"]}), "heavy")
        )
        for n in range(60)
    ]
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    await threads.compile(kept, "light")
    at_once = time.perf_counter() - began
    await threads.compile(StructuredOutputsParams(json={"enum": ["new"]}), "light")
    soon = time.perf_counter() - began
    assert sum(task.done() for task in heavy) < len(heavy) / 2
    for task in heavy:
        task.cancel()
    await asyncio.wait(heavy)
    assert at_once < 0.1 and soon < 0.5
