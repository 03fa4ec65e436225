"""Limits whose product is too large are refused; large answers are written on a thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.http_calls import USER, any_engine, post
from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import MAX_LOGPROBS, SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.server.generation.memory_limits import (
    check_copies,
    check_entries,
    num_possible_entries,
)
from twostroke.server.openai.chat_answer import ChatResponseFormat

CONTEXT = 8192
INFO = ExecutorInfo(
    model_id="x", vocab_size=340, max_model_len=CONTEXT, num_blocks=40, block_size=4
)
PROMPT = [1] * 192


def test_what_an_answer_may_have() -> None:
    assert num_possible_entries(INFO, [PROMPT], SamplingParams(max_tokens=10, logprobs=4)) == 50
    assert (
        num_possible_entries(INFO, [PROMPT] * 2, SamplingParams(max_tokens=10, logprobs=4, n=3))
        == 300
    )
    assert (
        num_possible_entries(INFO, [PROMPT], SamplingParams(max_tokens=None, logprobs=0))
        == CONTEXT - 192
    )
    assert (
        num_possible_entries(INFO, [PROMPT], SamplingParams(max_tokens=1, prompt_logprobs=1))
        == 1 + 2 * 192
    )


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"n": 128, "max_tokens": None}, 1),
        ({"max_tokens": 1000}, 256),
        ({"n": 16, "max_tokens": 8000}, 1),
    ],
)
def test_too_many_log_probabilities(fields: dict[str, Any], prompts: int) -> None:
    with pytest.raises(InvalidRequestError, match="at most 2097152 are kept") as caught:
        check_entries(INFO, [PROMPT] * prompts, SamplingParams(logprobs=MAX_LOGPROBS, **fields))
    assert caught.value.param == "logprobs"
    check_entries(INFO, [PROMPT] * prompts, SamplingParams(**fields))


def test_one_answer_may_always_have_all_of_its() -> None:
    long = ExecutorInfo(
        model_id="x", vocab_size=340, max_model_len=2**20, num_blocks=40, block_size=4
    )
    check_entries(long, [PROMPT], SamplingParams(logprobs=MAX_LOGPROBS, max_tokens=None))


def test_too_many_copies_of_long_prompts() -> None:
    """A body of 5 MB made the server hold 800 MB, before a single token went through the model."""
    long = ExecutorInfo(
        model_id="x", vocab_size=340, max_model_len=2**17, num_blocks=40, block_size=4
    )
    prompt = [1] * 100_000
    check_copies(long, [prompt], SamplingParams(n=128))
    check_copies(INFO, [[1] * 8000] * 256, SamplingParams(n=4))
    with pytest.raises(
        InvalidRequestError, match="8 prompts with n=128 hold 102400000 tokens"
    ) as caught:
        check_copies(long, [prompt] * 8, SamplingParams(n=128))
    assert caught.value.param == "n"


async def test_a_call_is_asked_for_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twostroke.server.generation.memory_limits.MAX_PROMPT_COPIES", 1)
    monkeypatch.setattr("twostroke.server.generation.memory_limits.MAX_SAMPLES", 0)
    response = await post(any_engine(), "completions", {"prompt": [[1, 2]], "n": 2})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


async def test_a_chat_is_refused_by_its_own_field_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twostroke.server.generation.memory_limits.MAX_LOGPROB_ENTRIES", 2_000)
    body = {"messages": USER, "logprobs": True, "top_logprobs": 20, "max_tokens": 80, "n": 2}
    response = await post(any_engine(), "chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "top_logprobs"


@pytest.mark.parametrize(("n", "elsewhere"), [(2, False), (40, True)])
async def test_large_answers_are_written_on_a_thread(
    n: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 positions of 20 held up the event loop for a second."""
    threads: list[int] = []
    complete = ChatResponseFormat.complete

    def watched(*arguments: Any) -> object:
        threads.append(threading.get_ident())
        return complete(*arguments)

    monkeypatch.setattr(ChatResponseFormat, "complete", watched)
    body = {"messages": USER, "logprobs": True, "top_logprobs": 20, "max_tokens": 4, "n": n}
    response = await post(any_engine(), "chat/completions", body)
    assert [len(choice["logprobs"]["content"]) for choice in response.json()["choices"]] == [4] * n
    assert (threads != [threading.get_ident()]) == elsewhere
