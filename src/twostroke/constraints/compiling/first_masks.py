"""The first masks of a grammar, when it is compiled: what cannot work mostly fails there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twostroke.constraints.grammar_constraint import (
    MAX_STATES,
    CompiledGrammar,
    first_line,
)
from twostroke.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

TRIED_TOKENS = 3
# Bytes that follow without a choice. The library goes through all of them again at each token,
# which takes 1 to 3 ms where a usual mask takes 10 to 30 us.
MAX_FORCED_BYTES = 8_192


def compiled_grammar(text: str, vocabulary: LLTokenizer, param: str) -> CompiledGrammar:
    """A grammar that has been tried: references to themselves fail only at a mask.

    Args:
        text: In the library's notation.
        param: What errors name as the offending field.

    Raises:
        InvalidRequestError: It is malformed, no answer can satisfy it, or it takes too long.
    """
    from llguidance import LLMatcher

    limits = _limits()

    def make_matcher(text: str) -> LLMatcher:
        return LLMatcher(vocabulary, text, log_level=0, limits=limits)

    grammar = CompiledGrammar(text, make_matcher, vocabulary.eos_token)
    matcher = grammar.states.matcher
    if not matcher.is_error() and not any(matcher.compute_bitmask()) and not matcher.is_error():
        raise InvalidRequestError(f"no answer can satisfy {param}", param=param)
    reason = first_line(matcher.get_error()) or _what_fails_early(matcher, param)
    if reason:
        if reason.startswith("NoExtension"):
            reason = "no answer can satisfy it"
        raise InvalidRequestError(f"{param} cannot be used: {reason}", param=param)
    return grammar


def _what_fails_early(matcher: LLMatcher, param: str) -> str:
    """Why an answer cannot even begin; empty if it can."""
    beginning = matcher.deep_copy()
    for _ in range(TRIED_TOKENS):
        mask = np.frombuffer(beginning.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if len(beginning.compute_ff_bytes()) > MAX_FORCED_BYTES:
            raise InvalidRequestError(
                f"{param} cannot be used: it leaves no choice for more than {MAX_FORCED_BYTES}"
                " characters, each of whose tokens takes long to look up",
                param=param,
                hint="leave such texts out of the form, and add them to the answer",
            )
        if not len(allowed) or not beginning.consume_token(int(allowed[0])):
            break
    return first_line(beginning.get_error()) if beginning.is_error() else ""


def _limits() -> LLParserLimits:
    """Bounds of memory and time, in the library's own units; it stops at them by itself.

    An initial fuel of 1,000,000 lasts 20 ms. A mask of the worst grammar that passes takes 20 ms,
    and such an answer ends within a second (docs/reference/structured-output.md). 240 optional
    properties fit, or an ``anyOf`` of 1,000 options.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        max_items_in_row=1_000,
        step_max_items=4_000,
        max_lexer_states=MAX_STATES,
        max_grammar_size=250_000,
        verbose_errors=False,
    )
