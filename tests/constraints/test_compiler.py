"""Compiled once, kept within bounds, beside the event loop, for a bounded time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.constraints import walks
from twostroke.constraints import compile_threads
from twostroke.constraints.compile_threads import CompileThreads
from twostroke.constraints.compiler import GrammarCompiler, with_texts
from twostroke.constraints.constraint import Grammar
from twostroke.core.errors import InvalidRequestError, QueueFullError
from twostroke.core.structured_outputs import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_equal_descriptions_have_one_grammar() -> None:
    compiler = GrammarCompiler(walks.tokenizer())
    first = compiler.compile(StructuredOutputsParams(json=SCHEMA))
    assert compiler.compile(StructuredOutputsParams(json=dict(SCHEMA))) is first
    assert compiler.compile(with_texts(StructuredOutputsParams(json=SCHEMA))) is first
    other = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    assert compiler.compile(other) is not first
    assert len(compiler) == 2


def test_kinds_with_the_same_content_do_not_meet() -> None:
    compiler = GrammarCompiler(walks.tokenizer())
    compiler.compile(StructuredOutputsParams(regex="a"))
    compiler.compile(StructuredOutputsParams(choice=["a"]))
    assert len(compiler) == 2


def test_those_that_were_used_last_are_kept() -> None:
    compiler = GrammarCompiler(walks.tokenizer(), max_grammars=2)
    a, b, c = (StructuredOutputsParams(regex=text) for text in "abc")
    first = compiler.compile(a)
    compiler.compile(b)
    assert compiler.compile(a) is first
    compiler.compile(c)
    assert len(compiler) == 2
    assert compiler.compile(a) is first


def test_errors_are_not_kept() -> None:
    compiler = GrammarCompiler(walks.tokenizer())
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            compiler.compile(StructuredOutputsParams(regex="("))
    assert len(compiler) == 0


class SlowCompiler(GrammarCompiler):
    """Compiles when it is let."""

    def __init__(self) -> None:
        super().__init__(walks.tokenizer())
        self.may_go_on, self.num_built = threading.Event(), 0

    def _build(self, wanted: StructuredOutputsParams) -> Grammar:
        self.num_built += 1
        assert self.may_go_on.wait(10)
        return super()._build(wanted)


def test_threads_that_want_the_same_wait_for_one() -> None:
    compiler = SlowCompiler()
    with ThreadPoolExecutor(4) as threads:
        running = [
            threads.submit(compiler.compile, StructuredOutputsParams(regex="a")) for _ in range(4)
        ]
        time.sleep(0.05)
        compiler.may_go_on.set()
        grammars = {id(each.result(timeout=10)) for each in running}
    assert len(grammars) == 1 and compiler.num_built == 1


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


async def test_the_queue_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_threads, "MAX_WAITING", 3)
    compiler = SlowCompiler()
    threads = CompileThreads(compiler, seconds=5)
    running = [
        asyncio.create_task(threads.compile(StructuredOutputsParams(regex=text))) for text in "abc"
    ]
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFullError):
        await threads.compile(StructuredOutputsParams(regex="d"))
    compiler.may_go_on.set()
    await asyncio.gather(*running)
    await threads.compile(StructuredOutputsParams(regex="d"))


class BrokenCompiler(GrammarCompiler):
    """Its vocabulary cannot be prepared, once another thread waits for it."""

    def __init__(self) -> None:
        super().__init__(walks.tokenizer())
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _build(self, wanted: StructuredOutputsParams) -> Grammar:
        self.begun.set()
        assert self.go_on.wait(60)
        raise RuntimeError("no vocabulary")


def test_who_waits_for_a_compilation_hears_of_any_failure() -> None:
    compiler, wanted = BrokenCompiler(), StructuredOutputsParams(regex="a")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(compiler.compile, wanted)
        assert compiler.begun.wait(60)
        second = threads.submit(compiler.compile, wanted)
        compiler.go_on.set()
        for done in (first, second):
            with pytest.raises(RuntimeError, match="no vocabulary"):
                done.result(timeout=60)
