"""Prompts that fit: what stays, what is removed first, and the numbers in the report."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.text.contexts import (
    DROPPING,
    chat,
    docs,
    kept_turns,
    put_together,
    size,
    template,
    text_of,
    tokenizer,
)
from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.model_spec.model_files import resolve_model
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.context import assemble
from twostroke.text.context_report import Strategy
from twostroke.text.tokenizer import Tokenizer


def test_what_fits_is_what_the_template_writes() -> None:
    messages = chat(2)
    assembly = put_together(messages, hard_limit=1000)
    text = template("chatml").render(messages)
    assert assembly.token_ids == tokenizer().encode(text, add_special_tokens=False)
    assert assembly.report.dropped_turns == 0 and assembly.report.kept_turns == 2


def test_order_is_system_documents_history_last() -> None:
    text = text_of(put_together(chat(1), docs("first text", "second text"), hard_limit=1000))
    places = [
        text.index(t)
        for t in ("Be brief.", "[d0]\nfirst text", "[d1]\nsecond text", "question0", "the last")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("strategy", "gone", "left"),
    [("drop_oldest", 2, [2, 3, 4]), ("drop_middle", 2, [0, 3, 4]), ("drop_middle", 3, [0, 4])],
)
def test_turns_go_whole_and_in_the_order_of_the_strategy(
    strategy: str, gone: int, left: list[int]
) -> None:
    messages = chat(5)
    without = [
        m
        for m in messages
        if not any(m["content"].endswith(str(i)) for i in set(range(5)) - set(left))
    ]
    exactly = size(without)
    assert kept_turns(put_together(messages, hard_limit=exactly, strategy=strategy), 5) == left
    assert (
        len(kept_turns(put_together(messages, hard_limit=exactly - 1, strategy=strategy), 5))
        == 5 - gone - 1
    )


def test_turns_go_before_documents_or_after() -> None:
    messages, documents = chat(3), docs("a fox", "a dog", scores=(2.0, 1.0))
    turns_first = put_together(
        messages, documents, hard_limit=size(messages[-1:], documents) + 12, strategy="drop_oldest"
    )
    assert turns_first.report.dropped_document_tokens == 0 and turns_first.report.dropped_turns == 3
    documents_first = put_together(
        messages, documents, hard_limit=size(messages), strategy="drop_documents"
    )
    assert (
        documents_first.report.kept_document_tokens == 0
        and documents_first.report.dropped_turns == 0
    )


@pytest.mark.parametrize("strategy", DROPPING)
def test_documents_go_by_score_and_stay_in_their_order(strategy: str) -> None:
    documents = docs("fox " * 20, "dog " * 20, "lazy " * 20, scores=(1.0, 3.0, 2.0))
    hard_limit = size(chat(0), [documents[1], documents[2]])
    assembly = put_together(chat(0), documents, hard_limit=hard_limit, strategy=strategy)
    assert [bool(use.kept_tokens) for use in assembly.report.documents] == [False, True, True]
    assert text_of(assembly).index("[d1]") < text_of(assembly).index("[d2]")
    best_first = put_together(chat(0), documents, hard_limit=1000, document_order="score")
    places = [text_of(best_first).index(f"[{name}]") for name in ("d1", "d2", "d0")]
    assert places == sorted(places)


def test_without_scores_bm25_ranks_by_the_last_question() -> None:
    documents = docs("the fox jumps", "what the LAST question was", "the dog sleeps and sleeps")
    assembly = put_together(
        chat(0), documents, hard_limit=size(chat(0), documents) - 1, strategy="drop_documents"
    )
    scores = [use.score or 0 for use in assembly.report.documents]
    assert scores[1] > max(scores[0], scores[2])
    # "the" is in all of them: the shortest gains most by it, and of the others the last goes first.
    assert [bool(use.kept_tokens) for use in assembly.report.documents] == [True, True, False]
    assert all(
        use.score is None
        for use in put_together(chat(0), documents, hard_limit=1000).report.documents
    )


def test_the_last_document_to_go_is_cut() -> None:
    words = " ".join(f"word{i}" for i in range(60))
    documents = docs("short and good", words, "never seen " * 40, scores=(3.0, 2.0, 1.0))
    hard_limit = size(chat(0), documents[:2]) - 50
    assembly = put_together(
        chat(0), documents, hard_limit=hard_limit, strategy="truncate_documents"
    )
    first, cut, gone = assembly.report.documents
    assert (
        first.kept_tokens == first.tokens
        and 0 < cut.kept_tokens < cut.tokens
        and gone.kept_tokens == 0
    )
    assert hard_limit - 10 <= len(assembly.token_ids) <= hard_limit
    text = text_of(assembly)
    written = text[text.index("word0") : text.index("<|end|>")]
    assert words.startswith(written)
    assert assembly.report.cut_document_tokens == cut.tokens - cut.kept_tokens
    whole_or_not = put_together(
        chat(0), documents, hard_limit=hard_limit, strategy="drop_documents"
    )
    # The second does not fit whole, and the third does.
    assert [bool(use.kept_tokens) for use in whole_or_not.report.documents] == [True, False, True]


def test_error_refuses_with_the_numbers() -> None:
    messages = chat(3)
    needed = size(messages)
    assert put_together(messages, hard_limit=needed, strategy="error").report.dropped_turns == 0
    with pytest.raises(RequestTooLargeError) as caught:
        put_together(messages, hard_limit=needed - 1, strategy="error")
    assert (caught.value.needed, caught.value.available) == (needed, needed - 1)
    with pytest.raises(RequestTooLargeError, match="about"):
        put_together(messages, docs("fox " * 1000), hard_limit=needed, strategy="error")


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_what_must_stay_is_never_cut(strategy: str) -> None:
    least = size(chat(0))
    if strategy != "error":
        fits = put_together(chat(4), docs("fox"), hard_limit=least, strategy=strategy)
        assert fits.token_ids == put_together(chat(0), hard_limit=least).token_ids
    with pytest.raises(RequestTooLargeError) as caught:
        put_together(chat(4), docs("fox"), hard_limit=least - 1, strategy=strategy)
    assert (caught.value.needed, caught.value.available, caught.value.param) == (
        least,
        least - 1,
        "messages",
    )
    with pytest.raises(RequestTooLargeError) as caught:
        put_together(chat(4), hard_limit=-5, strategy=strategy)
    assert caught.value.available == 0


def test_usual_gives_way_to_what_must_stay() -> None:
    messages = chat(3)
    least = size(chat(0))
    assert put_together(messages, hard_limit=1000, soft_limit=least - 5).report.kept_turns == 0
    assert put_together(messages, hard_limit=1000, soft_limit=size(messages)).report.kept_turns == 3
    assert (
        put_together(messages, hard_limit=1000, soft_limit=1, strategy="error").report.kept_turns
        == 3
    )


def test_system_messages_stay_wherever_they_are() -> None:
    messages = chat(2)
    messages.insert(3, {"role": "system", "content": "From now on rhyme."})
    assembly = put_together(messages, hard_limit=size([messages[0], messages[3], messages[-1]]))
    assert "From now on rhyme." in text_of(assembly) and assembly.report.dropped_turns == 2
    assert assembly.report.system_tokens == sum(
        tokenizer().count(["Be brief.", "From now on rhyme."])
    )


def test_what_follows_the_last_user_message_stays() -> None:
    messages = [*chat(2), {"role": "assistant", "content": "I think"}]
    assembly = put_together(messages, hard_limit=size([messages[0], *messages[-2:]]))
    assert text_of(assembly).endswith("I think<|end|>\n<|start|>assistant\n")
    assert assembly.report.kept_turns == 0


def test_an_answer_without_a_question_is_a_turn() -> None:
    messages = [{"role": "assistant", "content": "answer9"}, *chat(1, system=None)]
    assert put_together(messages, hard_limit=1000).report.kept_turns == 2
    assembly = put_together(messages, hard_limit=size(messages) - 1)
    assert "answer9" not in text_of(assembly) and kept_turns(assembly, 1) == [0]


def test_a_chat_that_the_template_refuses() -> None:
    with pytest.raises(InvalidRequestError, match="does not accept"):
        put_together(chat(1), hard_limit=1000, template="no_system")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        assemble(ChatEncoder(ChatTemplate(None), tokenizer()), chat(1), docs("x"), hard_limit=1000)


def test_texts_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand documents of which ten fit cost one pass over them and a few over the prompt."""
    counted: list[str] = []
    encoded: list[str] = []
    count, encode = Tokenizer.count, Tokenizer.encode

    def counting(self: Tokenizer, texts: list[str]) -> list[int]:
        counted.extend(texts)
        return count(self, texts)

    def encoding(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        encoded.append(text)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "count", counting)
    monkeypatch.setattr(Tokenizer, "encode", encoding)
    documents = docs(
        *[f"text {i} " + "fox " * 30 for i in range(1000)], scores=tuple(map(float, range(1000)))
    )
    assembly = put_together(chat(40), documents, hard_limit=1000)
    assert 5 <= sum(use.kept_tokens > 0 for use in assembly.report.documents) <= 10
    assert sum(map(len, counted)) < 1.1 * sum(len(d.written()) for d in documents)
    assert sum(map(len, encoded)) < 8 * len(text_of(assembly))


def test_with_the_embedded_model() -> None:
    pilot_tokenizer = Tokenizer.from_folder(resolve_model("pilot"))
    source = ChatTemplate.from_tokenizer(pilot_tokenizer)
    turns = [
        {"role": role, "content": f"{role} speaks of prefill " * 9}
        for role in ("user", "assistant")
    ] * 30
    messages = [
        {"role": "system", "content": "Be brief."},
        *turns,
        {"role": "user", "content": "What is decode?"},
    ]
    whole = pilot_tokenizer.encode(source.render(messages), add_special_tokens=False)
    assembly = assemble(
        ChatEncoder(source, pilot_tokenizer),
        messages,
        docs("Decode writes tokens."),
        hard_limit=len(whole) // 2,
    )
    report = assembly.report
    one_turn = len(
        pilot_tokenizer.encode(
            source.render(turns[:2], add_generation_prompt=False), add_special_tokens=False
        )
    )
    assert (
        len(whole) // 2 - one_turn
        < report.prompt_tokens
        == len(assembly.token_ids)
        <= len(whole) // 2
    )
    text = pilot_tokenizer.decode(assembly.token_ids, skip_special_tokens=False)
    assert text.startswith(
        "<|im_start|>system\nBe brief.\n\nDocuments:\n\n[d0]\nDecode writes tokens.<|im_end|>\n"
    )
    assert text.endswith("<|im_start|>user\nWhat is decode?<|im_end|>\n<|im_start|>assistant\n")
