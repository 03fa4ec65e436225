"""Protects: tokens are kept as they were, within bounds, with the draws that picked them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.server.tiny import make_engine
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.inspector.content import OVERHEAD, ContentBook, RequestContent, TokenPage, token_page
from twostroke.sampling.random import uniforms

PROMPT = list(range(1, 18))


def run(book: ContentBook, request_id: str = "a", **params: Any) -> list[Any]:
    """The outputs of one request on a real engine."""
    engine = make_engine(observers=[book])
    submit(engine, request_id, **params)
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    engine.close()
    return outputs


def submit(engine: LLMEngine, request_id: str, **params: Any) -> None:
    chosen = SamplingParams(**{"max_tokens": 9, "ignore_eos": True, "seed": 5} | params)
    engine.submit(
        GenerationRequest(
            request_id=request_id, prompt_token_ids=PROMPT, params=chosen, tenant="alice"
        )
    )


def page(book: ContentBook, request_id: str = "a", begin: int = 0, count: int = 99) -> TokenPage:
    engine, content = make_engine(), book.find(request_id)
    assert content is not None and engine.tokenizer is not None
    found = token_page(content, engine.tokenizer, begin, count)
    engine.close()
    return found


def test_tokens_and_log_probabilities_are_the_answers_own() -> None:
    book = ContentBook()
    outputs = run(book, logprobs=0)
    tokens = [token for output in outputs for token in output.token_ids]
    logprobs = [p.chosen.logprob for output in outputs for p in output.logprobs]
    found = page(book)
    assert found.ids == PROMPT + tokens
    assert (found.num_prompt, found.num_output) == (17, 9)
    assert found.logprobs[:17] == [None] * 17
    assert found.logprobs[17:] == pytest.approx(logprobs, abs=1e-4)
    part = page(book, begin=15, count=4)
    assert (part.begin, part.ids, part.texts) == (15, found.ids[15:19], found.texts[15:19])
    assert part.logprobs == found.logprobs[15:19] and part.draws == found.draws[15:19]
    assert page(book, begin=10**6).ids == []


def test_draws_are_those_of_seed_and_position() -> None:
    book = ContentBook()
    run(book)
    found = page(book)
    positions = np.arange(17, 26, dtype=np.int64)
    assert found.seed == "5"
    assert found.draws[17:] == uniforms(np.full(9, 5, dtype=np.uint64), positions).tolist()
    assert found.draws[:17] == [None] * 17
    assert found.logprobs == [None] * 26  # the request did not ask for them


def test_a_greedy_answer_has_no_draws() -> None:
    book = ContentBook()
    run(book, temperature=0)
    assert page(book).draws == [None] * 26


def test_a_running_request_is_shown_as_far_as_it_is() -> None:
    book = ContentBook()
    engine = make_engine(observers=[book])
    submit(engine, "a")
    assert page(book).ids == PROMPT
    for _ in range(4):
        engine.step()
    assert page(book).num_output == 4
    engine.abort("a")
    assert page(book).num_output == 4
    engine.close()


def test_a_stop_string_takes_back_what_came_after_it() -> None:
    book = ContentBook()
    whole = run(book, "whole", logprobs=0)
    text = "".join(output.text for output in whole)
    run(book, "cut", logprobs=0, stop=[text[2:4]])
    content = book.find("cut")
    assert content is not None
    assert len(content.logprobs) == len(content.tokens) - 17 < 9


def test_bytes_are_bounded_and_the_oldest_go() -> None:
    one = OVERHEAD + 4 * (17 + 9)
    book = ContentBook(max_bytes=2 * one)
    for request_id in ("a", "b", "c"):
        run(book, request_id)
    assert book.find("a") is None
    assert book.find("b") is not None and book.find("c") is not None
    assert book.num_bytes == 2 * one
    tiny = ContentBook(max_bytes=one - 1)
    run(tiny)
    assert tiny.find("a") is None and tiny.num_bytes == 0


def test_characters_of_several_tokens_belong_to_the_last_and_others_are_replaced() -> None:
    engine = make_engine()
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    emoji = tokenizer.encode("a\U0001f600b", add_special_tokens=False)
    content = RequestContent("", len(emoji), 0, 1.0, None)
    content.tokens.extend(emoji)
    texts = token_page(content, tokenizer, 0, 99).texts
    assert "".join(text or "" for text in texts) == "a\U0001f600b"
    assert None in texts
    # From the middle of it on, and a character that never ends.
    assert token_page(content, tokenizer, texts.index(None) + 1, 99).texts[-1] == "b"
    broken = RequestContent("", 3, 0, 1.0, None)
    broken.tokens.extend([emoji[1], emoji[0], emoji[1]])
    shown = token_page(broken, tokenizer, 0, 99).texts
    assert shown[1] == "\ufffda"
    assert all(text is None or text.encode() for text in shown)  # no lone surrogate
    engine.close()


def test_infinite_log_probabilities_are_none() -> None:
    engine = make_engine()
    assert engine.tokenizer is not None
    content = RequestContent("", 1, 0, 1.0, None)
    content.tokens.extend([1, 2])
    content.logprobs.append(-math.inf)
    assert token_page(content, engine.tokenizer, 0, 9).logprobs == [None, None]
    engine.close()
