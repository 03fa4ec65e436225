"""Properties of every prompt that is put together, whatever it is made of."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.contexts import (
    put_together,
    template,
    text_of,
    tokenizer,
)
from twostroke.core.errors import RequestTooLargeError
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.context_report import Strategy
from twostroke.text.documents import Document

WORDS = st.lists(
    st.sampled_from(["the", "fox", "Dog,", "naïve", "你好", "\n", "  ", "x" * 20, "🙂", "<|end|>"]),
    max_size=12,
)
TEXTS = WORDS.map(" ".join)
MESSAGES = st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXTS)


@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=10),
    documents=st.lists(st.tuples(TEXTS.filter(bool), st.none() | st.text(max_size=5)), max_size=6),
    scores=st.none() | st.lists(st.integers(-2, 2), min_size=6, max_size=6),
    name=st.sampled_from(["chatml", "plain", "own_documents"]),
    strategy=st.sampled_from(get_args(Strategy)),
    order=st.sampled_from(["given", "score"]),
    hard_limit=st.integers(0, 400),
)
@settings(deadline=None, max_examples=150)
def test_properties(
    messages: list[tuple[str, str]],
    documents: list[tuple[str, str | None]],
    scores: list[int] | None,
    name: str,
    strategy: Strategy,
    order: str,
    hard_limit: int,
) -> None:
    """Within the budget, in order, system and last message intact, all tokens counted."""
    chatted = [
        {"role": role, "content": f"<{i}>{text}</{i}>"} for i, (role, text) in enumerate(messages)
    ]
    given_documents = [
        Document(
            text=text, id=f"d{i}", title=title, score=None if scores is None else float(scores[i])
        )
        for i, (text, title) in enumerate(documents)
    ]
    options: dict[str, Any] = {"template": name, "strategy": strategy, "document_order": order}
    last = max((i for i, m in enumerate(chatted) if m["role"] == "user"), default=len(chatted) - 1)
    fixed = [m for i, m in enumerate(chatted) if m["role"] == "system" or i >= last]
    least = ChatEncoder(template(name), tokenizer()).encode(fixed)
    try:
        assembly = put_together(chatted, given_documents, hard_limit=hard_limit, **options)
    except RequestTooLargeError as error:
        assert error.available == hard_limit < error.needed
        assert strategy == "error" or error.needed == len(least)
        return
    report, text = assembly.report, text_of(assembly)
    assert len(assembly.token_ids) == report.prompt_tokens <= report.max_tokens == hard_limit

    there = [i for i, m in enumerate(chatted) if m["content"] in text]
    places = [text.index(chatted[i]["content"]) for i in there]
    assert places == sorted(places)
    assert {chatted.index(m) for m in fixed} <= set(there)

    texts = report.system_tokens + report.last_message_tokens + report.kept_history_tokens
    assert texts + report.kept_document_tokens + report.template_tokens == report.prompt_tokens
    counts = tokenizer().count([m["content"] for m in chatted])
    assert texts + report.dropped_history_tokens == sum(counts)
    assert texts == sum(counts[i] for i in there)
    everything = (
        report.kept_document_tokens + report.cut_document_tokens + report.dropped_document_tokens
    )
    assert everything == sum(use.tokens for use in report.documents)
    assert [use.id for use in report.documents] == [document.id for document in given_documents]

    if strategy == "error" or (len(there) == len(chatted) and not report.dropped_document_tokens):
        assert (
            report.dropped_turns
            == report.dropped_document_tokens
            == report.dropped_history_tokens
            == 0
        )
    if scores is not None and strategy != "error":
        # A worse document stays where a better one is gone only if it is the shorter of the two.
        kept = [use for use in report.documents if use.kept_tokens]
        gone = [use for use in report.documents if not use.kept_tokens]
        for worse, better in (
            (k, g) for k in kept for g in gone if (k.score or 0) < (g.score or 0)
        ):
            assert worse.kept_tokens < better.tokens


@given(
    texts=st.lists(TEXTS, max_size=12),
    name=st.sampled_from(["chatml", "plain"]),
    hard_limit=st.integers(5, 300),
)
@settings(deadline=None, max_examples=100)
def test_no_turn_goes_needlessly(texts: list[str], name: str, hard_limit: int) -> None:
    """As plain a search as can be finds the same prompt: leave out one more turn until it fits."""
    turns = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
        for text in texts
    ]
    prompts = [
        ChatEncoder(template(name), tokenizer()).encode(
            [*(m for turn in turns[k:] for m in turn), {"role": "user", "content": "x"}]
        )
        for k in range(len(turns) + 1)
    ]
    expected = next((prompt for prompt in prompts if len(prompt) <= hard_limit), None)
    messages = [*(m for turn in turns for m in turn), {"role": "user", "content": "x"}]
    if expected is None:
        with pytest.raises(RequestTooLargeError):
            put_together(messages, hard_limit=hard_limit, template=name)
    else:
        assert put_together(messages, hard_limit=hard_limit, template=name).token_ids == expected
