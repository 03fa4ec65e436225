"""Compiled once for each tenant, kept within bounds, and tried before an answer depends on it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.constraints import walks
from tests.server.running import wait_until
from twostroke.constraints import compiler as compiler_module
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


def test_tenants_share_no_grammar() -> None:
    """What one writes in a form, and how far that fills it, does nothing to another's."""
    compiler = GrammarCompiler(walks.tokenizer())
    one, other = (compiler.compile(StructuredOutputsParams(regex="a", scope=s)) for s in "xy")
    assert one is not other and len(compiler) == 2


def test_what_an_answer_holds_is_not_compiled_again() -> None:
    compiler = GrammarCompiler(walks.tokenizer(), max_grammars=1)
    wanted = StructuredOutputsParams(regex="a")
    held = compiler.compile(wanted)
    compiler.compile(StructuredOutputsParams(regex="b"))
    assert compiler.find(wanted) is held and compiler.compile(wanted) is held


def test_a_full_queue_refuses_who_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 4)
    compiler = SlowCompiler()

    def begin(scope: str, text: str) -> None:
        compiler.begin(StructuredOutputsParams(regex=text, scope=scope))

    begin("heavy", "runs")
    wait_until(lambda: compiler.num_built == 1)
    for text in "abcd":
        begin("heavy", text)
    begin("light", "a")
    begin("light", "b")
    with pytest.raises(QueueFullError, match="4 of your requests wait"):
        begin("heavy", "f")
    begin("other", "a")
    compiler.may_go_on.set()


@pytest.mark.parametrize(
    "wanted",
    [
        StructuredOutputsParams(regex="a{30000}"),
        StructuredOutputsParams(json={"const": "ab" * 9_000}),
        StructuredOutputsParams(choice=["x" * 20_000, "y"]),
    ],
)
def test_a_form_that_forces_a_long_text_is_refused(wanted: StructuredOutputsParams) -> None:
    """What is forced is gone through again for each token: 30,000 characters take 5 ms."""
    compiler = GrammarCompiler(walks.tokenizer())
    with pytest.raises(InvalidRequestError, match="no choice for more than 8192") as caught:
        compiler.compile(wanted)
    assert caught.value.hint and caught.value.param == f"structured_outputs.{wanted.kind}"
    compiler.compile(StructuredOutputsParams(regex="a{3000}"))
