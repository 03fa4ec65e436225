"""Answers without a model: random walks over the tokens that a constraint allows."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np

from tests.text.tiny_tokenizers import byte_level
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import AllowedTokens, Constraint
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.text.tokenizer import Tokenizer

END = 0  # the tokenizer's end token


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level())


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer())


def start(wanted: StructuredOutputsParams, vocab_size: int | None = None) -> Constraint:
    vocab_size = vocab_size or tokenizer().vocab_size
    return compiler().compile(wanted).start([END], vocab_size)


def start_json(schema: Any, **options: Any) -> Constraint:
    return start(StructuredOutputsParams(json=schema, **options))


def token_ids(allowed: AllowedTokens) -> list[int]:
    """The tokens whose bits are set."""
    tokens: list[int] = np.flatnonzero(np.unpackbits(allowed.bits, bitorder="little")).tolist()
    return tokens


def walk(constraint: Constraint, seed: int, max_tokens: int = 200) -> tuple[str, bool]:
    """A random answer's text, and whether it ended by itself. It ends as soon as it may, at times.

    Characters that close something are taken more often, or few answers would end.
    """
    random, tokens = Random(seed), list[int]()
    for _ in range(max_tokens):
        allowed = token_ids(constraint.allowed())
        assert allowed, f"nothing may follow {tokenizer().decode(tokens)!r}"
        closing = [t for t in allowed if t == END or tokenizer().token_text(t)[:1] in '"]},']
        token = random.choice(closing if closing and random.random() < 0.3 else allowed)
        constraint.advance([token])
        if token == END:
            return tokenizer().decode(tokens, skip_special_tokens=False), True
        tokens.append(token)
    return tokenizer().decode(tokens, skip_special_tokens=False), False


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether a text, token by token, is allowed as a whole answer. Uses the constraint up."""
    for token in [*tokenizer().encode(text, add_special_tokens=False), END]:
        if token not in token_ids(constraint.allowed()):
            return False
        constraint.advance([token])
    return True
