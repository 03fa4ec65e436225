"""Compiles what clients ask for, within bounds, and keeps what was asked for lately."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twostroke.constraints.compiling.first_masks import compiled_grammar
from twostroke.constraints.compiling.grammar_cache import GrammarCache
from twostroke.constraints.compiling.turn_threads import TurnThreads, in_one_piece
from twostroke.constraints.compiling.vocabulary import load_vocabulary
from twostroke.constraints.constraint import Grammar
from twostroke.constraints.library_grammar import library_grammar
from twostroke.constraints.schemas.json_values import check_size
from twostroke.constraints.thought_budget import ThoughtMarks, thought_marks
from twostroke.core.errors import InvalidRequestError, QueueFullError
from twostroke.core.structured_outputs import MAX_SCHEMA_CHARS, PARAM, StructuredOutputsParams
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_GRAMMARS = 256
# Of all cached descriptions together. A character is some 50 bytes compiled: 270 MB of forms used
# once were kept at 8 MiB (256 enums of 1,500 values).
MAX_KEY_CHARS = 2 * 2**20
MAX_GRAMMAR_BYTES = 512 * 2**20  # that all cached grammars hold, estimated
NUM_THREADS = 2
MAX_WAITING = 64  # compilations, of all tenants


@dataclass(slots=True)
class Compilation:
    """One that waits, runs or is done, and for which some may wait together.

    Attributes:
        began: When it left the queue, on the clock ``time.monotonic``.
    """

    description: str
    num_waiting: int = 0
    began: float | None = None
    done: Future[Grammar] = field(default_factory=Future)


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Safe on any thread.

    The same description gives the same grammar, so a process that has only the description can
    compile it again. Tenants share the threads by turns, and no grammars: ``scope`` tells their
    descriptions apart. All of the library's recursion is on these threads, whose stacks are deep.

    Args:
        tokenizer: The model's. Its vocabulary is prepared for the first grammar.
        max_grammars: How many are kept: those that were used last.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_grammars: int = MAX_GRAMMARS) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._cache = GrammarCache(max_grammars, MAX_KEY_CHARS, MAX_GRAMMAR_BYTES)
        self._marks: ThoughtMarks | None = None
        self._under_way: dict[str, Compilation] = {}
        self._threads = TurnThreads("twostroke-compile", NUM_THREADS)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def thought_marks(self) -> ThoughtMarks:
        """What opens and ends thoughts; found by the first call."""
        if self._marks is None:
            self._marks = thought_marks(self._tokenizer)
        return self._marks

    def find(self, wanted: StructuredOutputsParams) -> Grammar | None:
        """The grammar of a description, if it is kept, or held by whoever uses it."""
        key = _key(wanted)
        with self._lock:
            return self._cache.find(key)

    def compile(self, wanted: StructuredOutputsParams) -> Grammar:
        """The grammar of a description: from the cache, or once it has been compiled.

        Raises:
            InvalidRequestError: It is malformed, no answer can satisfy it, or it asks for what
                cannot be enforced; the message names the keyword and where it stands.
        """
        return self.begin(wanted, bounded=False).done.result()

    def begin(self, wanted: StructuredOutputsParams, *, bounded: bool = True) -> Compilation:
        """Queue a compilation, or join one of the same; whoever leaves before its end says so.

        Args:
            bounded: Only while few others wait.

        Raises:
            QueueFullError: Too many wait, and more than its share of them are the scope's.
        """
        key = _key(wanted)
        with self._lock:
            if (compilation := self._under_way.get(key)) is not None:
                compilation.num_waiting += 1
                return compilation
            compilation = Compilation(key, num_waiting=1)
            if (grammar := self._cache.find(key)) is not None:
                compilation.done.set_result(grammar)
                return compilation
            if bounded:
                self._check_queue(wanted.scope)
            self._under_way[key] = compilation
            work = in_one_piece(partial(self._run, compilation, wanted))
            # Where there are keys, one that compiles without end leaves half of a thread.
            compilation.done = self._threads.submit(
                wanted.scope, work, rest=float(wanted.scope != "")
            )
        return compilation

    def leave(self, compilation: Compilation) -> None:
        """Wait for it no more. It is dropped if nobody does and it has not begun."""
        with self._lock:
            compilation.num_waiting -= 1
            if not compilation.num_waiting and compilation.done.cancel():
                self._under_way.pop(compilation.description, None)

    def end_token_ids(
        self, eos_token_ids: Collection[int], stop_token_ids: Collection[int]
    ) -> list[int]:
        """The tokens by which an answer ends: the model's, and a client's that are no text."""
        special = self._tokenizer.special_ids
        return sorted({*eos_token_ids, *(token for token in stop_token_ids if token in special)})

    def load(self) -> LLTokenizer:
        """The vocabulary, prepared by the first call."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = load_vocabulary(self._tokenizer)
            return self._vocabulary

    def _check_queue(self, scope: str) -> None:
        """A scope that has nothing waiting is let in, and so is one with less than its share."""
        waiting = self._threads.num_waiting()
        own, total = waiting.get(scope, 0), sum(waiting.values())
        if own and total >= MAX_WAITING and own >= MAX_WAITING // len(waiting):
            message = f"{own} of your requests wait for a schema or grammar to be compiled"
            raise QueueFullError(message, hint="try again later")

    def _run(self, compilation: Compilation, wanted: StructuredOutputsParams) -> Grammar:
        try:
            self.load()  # once; not on the time of the request that happens to be first
            compilation.began = time.monotonic()
            grammar = self._build(wanted)
            with self._lock:
                self._cache.keep(wanted.scope, compilation.description, grammar)
            return grammar
        finally:
            with self._lock:
                self._under_way.pop(compilation.description, None)

    def _build(self, wanted: StructuredOutputsParams) -> Grammar:
        param = f"{PARAM}.{wanted.kind}"
        vocabulary = self.load()
        try:
            text = library_grammar(wanted, self._tokenizer)
            return compiled_grammar(text, vocabulary, param)
        except (InvalidRequestError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library's Rust is no Exception
            message = f"{param} cannot be compiled: {type(error).__name__}"
            raise InvalidRequestError(message, param=param) from error


def with_texts(wanted: StructuredOutputsParams) -> StructuredOutputsParams:
    """A description with its objects written as text, so that looking it up costs nothing.

    Raises:
        InvalidRequestError: An object is too large.
    """
    if isinstance(wanted.json, Mapping):
        return replace(wanted, json=_text_of(wanted.json, f"{PARAM}.json"))
    if isinstance(wanted.structural_tag, Mapping):
        text = _text_of(wanted.structural_tag, f"{PARAM}.structural_tag")
        return replace(wanted, structural_tag=text)
    return wanted


def _text_of(value: Mapping[str, Any], param: str) -> str:
    check_size(value, MAX_SCHEMA_CHARS, param)
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{param} is no JSON: {error}", param=param) from error


def _key(wanted: StructuredOutputsParams) -> str:
    """All of a description as text; equal texts have equal grammars."""
    wanted = with_texts(wanted)
    options = [
        wanted.disable_any_whitespace,
        wanted.disable_additional_properties,
        wanted.whitespace_pattern,
        wanted.thought,
        wanted.scope,
    ]
    content = getattr(wanted, wanted.kind)
    return f"{wanted.kind}\n{json.dumps(options)}\n" + (
        content if isinstance(content, str) else json.dumps(content)
    )
