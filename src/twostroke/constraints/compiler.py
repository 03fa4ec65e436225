"""Compiles what clients ask for, within bounds, and keeps what was asked for lately."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from twostroke.constraints.constraint import Grammar
from twostroke.constraints.grammar_constraint import CompiledGrammar, first_line
from twostroke.constraints.json_values import check_size
from twostroke.constraints.library_grammar import library_grammar
from twostroke.constraints.thought_budget import ThoughtMarks, thought_marks
from twostroke.constraints.vocabulary import load_vocabulary
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import MAX_SCHEMA_CHARS, PARAM, StructuredOutputsParams
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_GRAMMARS = 256
TRIED_TOKENS = 3  # of an answer, when its grammar is compiled
MAX_KEY_CHARS = 8 * 2**20  # of all cached descriptions together


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Safe on any thread.

    The same description gives the same grammar, so a process that has only the description can
    compile it again.

    Args:
        tokenizer: Of the model. Its vocabulary is prepared for the first grammar.
        max_grammars: How many are kept: those that were used last.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_grammars: int = MAX_GRAMMARS) -> None:
        self._tokenizer = tokenizer
        self._max_grammars = max_grammars
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._num_chars = 0
        self._marks: ThoughtMarks | None = None
        self._building: dict[str, Future[Grammar]] = {}

    def __len__(self) -> int:
        return len(self._grammars)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def thought_marks(self) -> ThoughtMarks:
        """What opens and ends thoughts; found by the first call."""
        if self._marks is None:
            self._marks = thought_marks(self._tokenizer)
        return self._marks

    def compile(self, wanted: StructuredOutputsParams) -> Grammar:
        """The grammar of a description: from the cache, or compiled on the calling thread.

        Threads that want the same at once wait for one of them.

        Raises:
            InvalidRequestError: It is malformed, no answer can satisfy it, or it asks for what
                cannot be enforced; the message names the keyword and where it stands.
        """
        key = _key(wanted)
        with self._lock:
            if (grammar := self._grammars.get(key)) is not None:
                self._grammars.move_to_end(key)
                return grammar
            building = self._building.get(key)
            if building is None:
                mine: Future[Grammar] = Future()
                self._building[key] = mine
        if building is not None:
            return building.result()
        try:
            mine.set_result(grammar := self._build(wanted))
        except BaseException as error:  # whatever it is, other threads wait for it
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._building[key]
        self._keep(key, grammar)
        return grammar

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

    def _build(self, wanted: StructuredOutputsParams) -> Grammar:
        param = f"{PARAM}.{wanted.kind}"
        vocabulary = self.load()
        try:
            text = library_grammar(wanted, self._tokenizer)
            return _compiled(text, vocabulary, param)
        except (InvalidRequestError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library's Rust is no Exception
            message = f"{param} cannot be compiled: {type(error).__name__}"
            raise InvalidRequestError(message, param=param) from error

    def _keep(self, key: str, grammar: Grammar) -> None:
        with self._lock:
            if key not in self._grammars:
                self._num_chars += len(key)
            self._grammars[key] = grammar
            while len(self._grammars) > self._max_grammars or self._num_chars > MAX_KEY_CHARS:
                oldest, _ = self._grammars.popitem(last=False)
                self._num_chars -= len(oldest)


def with_texts(wanted: StructuredOutputsParams) -> StructuredOutputsParams:
    """The same description, its objects written as text: looking it up costs nothing then.

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
    ]
    content = getattr(wanted, wanted.kind)
    return f"{wanted.kind}\n{json.dumps(options)}\n" + (
        content if isinstance(content, str) else json.dumps(content)
    )


def _compiled(text: str, vocabulary: LLTokenizer, param: str) -> Grammar:
    """A grammar with its first mask: references to themselves fail only there."""
    from llguidance import LLMatcher

    matcher = LLMatcher(vocabulary, text, log_level=0, limits=_limits())
    grammar = CompiledGrammar(matcher, vocabulary.eos_token)
    if not matcher.is_error() and not any(matcher.compute_bitmask()) and not matcher.is_error():
        raise InvalidRequestError(f"no answer can satisfy {param}", param=param)
    reason = first_line(matcher.get_error()) or _what_fails_early(matcher)
    if not reason:
        return grammar
    if reason.startswith("NoExtension"):
        reason = "no answer can satisfy it"
    raise InvalidRequestError(f"{param} cannot be used: {reason}", param=param)


def _what_fails_early(matcher: LLMatcher) -> str:
    """Why an answer cannot even begin; empty if it can. What is too large mostly fails there."""
    beginning = matcher.deep_copy()
    for _ in range(TRIED_TOKENS):
        mask = np.frombuffer(beginning.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if not len(allowed) or not beginning.consume_token(int(allowed[0])):
            break
    return first_line(beginning.get_error()) if beginning.is_error() else ""


def _limits() -> LLParserLimits:
    """Bounds of memory and time, in the library's own units; it stops at them by itself.

    An initial fuel of 1,000,000 lasts 20 ms. A mask of the worst grammar that passes takes 20 ms,
    and such an answer ends within a second (docs/reference/structured-output.md). 240 optional
    properties fit, or an ``anyOf`` of 1,000 options. A state of the lexer takes 2 kB.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        max_items_in_row=1_000,
        step_max_items=4_000,
        max_lexer_states=50_000,
        max_grammar_size=250_000,
        verbose_errors=False,
    )
