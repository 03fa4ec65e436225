"""`twostroke serve` with the embedded model, as a process, and the official client."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.running import ServerProcess, running_process, wait_until

QUESTION: list[Any] = [{"role": "user", "content": "What is the KV cache?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    # float32, so that an answer does not depend on what shares its steps.
    flags = [
        "--port",
        "0",
        "--kv-cache-memory",
        "64MiB",
        "--max-num-seqs",
        "8",
        "--dtype",
        "float32",
    ]
    with running_process("-m", "twostroke", "serve", *flags) as process:
        process.url()
        yield process
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url() + "/v1", api_key="none", max_retries=0) as client:
        yield client


def running_requests(url: str) -> float:
    lines = httpx.get(url + "/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")
    )


def test_banner(server: ServerProcess) -> None:
    assert "serves pilot on " in server.stderr
    assert "of maximum length (8,192)" in server.stderr


def test_start_up_by_phase(server: ServerProcess) -> None:
    """Phases in order of their ends; they add up to the time until the engine was ready."""
    lines = httpx.get(server.url() + "/metrics").text.splitlines()
    phase_lines = [line for line in lines if line.startswith("twostroke:startup_seconds{")]
    seconds = {
        re.findall(r'phase="(\w+)"', line)[0]: float(line.split()[-1]) for line in phase_lines
    }
    one_after_the_other = ("process", "import", "config", "weights", "kv_cache")
    assert seconds.keys() == {*one_after_the_other, "tokenizer", "ready"}
    assert (
        0.8 * seconds["ready"]
        < sum(seconds[phase] for phase in one_after_the_other)
        < seconds["ready"] + 0.1
    )


def test_streamed_text_is_the_whole_answer(api: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "pilot",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = api.chat.completions.create(**fields)
    chunks = list(
        api.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_samples_and_seeds(api: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "pilot",
        "messages": QUESTION,
        "n": 3,
        "max_tokens": 12,
        "seed": 5,
    }
    # So hot that even a model that is sure of its answer gives several.
    once, again = (api.chat.completions.create(**fields, temperature=5) for _ in range(2))
    texts = [choice.message.content for choice in once.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1


def test_logprobs_and_echo(api: openai.OpenAI) -> None:
    answer: Any = api.chat.completions.create(
        model="pilot", messages=QUESTION, logprobs=True, top_logprobs=3, temperature=0, max_tokens=5
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
    scored: Any = api.completions.create(
        model="pilot", prompt="The KV cache", echo=True, logprobs=1, max_tokens=0
    )
    logprobs = scored.choices[0].logprobs
    assert "".join(logprobs.tokens) == scored.choices[0].text == "The KV cache"
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_stop_string_is_not_leaked(api: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "pilot",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 40,
    }
    text = api.chat.completions.create(**fields).choices[0].message.content
    stop = text[10:14]
    answer = api.chat.completions.create(**fields, stop=stop)
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    chunks = api.chat.completions.create(**fields, stop=[stop], stream=True)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        == text[: text.index(stop)]
    )


def test_cached_tokens_are_reported(api: openai.OpenAI) -> None:
    prompt = "Prefill reads the whole prompt at once. " * 20
    usages: list[Any] = [
        api.completions.create(model="pilot", prompt=prompt, max_tokens=1).usage for _ in range(2)
    ]
    assert usages[0].prompt_tokens_details.cached_tokens == 0
    assert usages[1].prompt_tokens_details.cached_tokens > usages[1].prompt_tokens - 32


def test_a_long_chat_with_documents_is_put_together(api: openai.OpenAI) -> None:
    turns: list[Any] = [
        {"role": role, "content": f"{role} {i} speaks"}
        for i in range(300)
        for role in ("user", "assistant")
    ]
    documents = [
        "Decode reads the KV cache once per pass.",
        "A fox jumps over a cache. " * 200,
        "The KV cache holds keys and values.",
    ]
    fields: dict[str, Any] = {
        "model": "pilot",
        "messages": [*turns, *QUESTION],
        "max_tokens": 8,
        "temperature": 0,
    }
    extra: dict[str, Any] = {
        "documents": documents,
        "context": {"max_tokens": 500, "strategy": "drop_oldest"},
    }
    whole: Any = api.chat.completions.create(**fields, extra_body=extra)
    context = whole.usage.context
    assert sum(context["kept"].values()) == whole.usage.prompt_tokens <= 500
    # All turns went before any document; once the one that is too long was gone, the latest of them
    # came back.
    assert sum(context["turns"].values()) == 300
    assert 0 < context["turns"]["kept"] < 40
    assert whole.usage.prompt_tokens > 450
    assert [use["kept_tokens"] > 0 for use in context["documents"]] == [True, False, True]
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = api.chat.completions.create(**fields, **options, extra_body=extra)
    assert last.usage.context == context
    extra["context"]["strategy"] = "drop_documents"
    kept: Any = api.chat.completions.create(**fields, extra_body=extra)
    assert kept.usage.context["kept"]["documents"] == 0 < kept.usage.context["turns"]["kept"] < 300
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(
            **{**fields, "messages": [{"role": "user", "content": "Why? " * 9000}]},
            extra_body=extra,
        )
    assert caught.value.code == "context_length_exceeded"


def test_errors(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="pilot", messages=QUESTION, max_completion_tokens=100_000)
    assert (caught.value.code, caught.value.param) == (
        "context_length_exceeded",
        "max_completion_tokens",
    )
    with pytest.raises(openai.BadRequestError) as caught:
        api.completions.create(model="pilot", prompt=[1, 2, 10**6])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as caught:
        api.completions.create(model="pilot", prompt="x", logit_bias={str(10**6): 1})
    assert caught.value.param == "logit_bias"


def test_leaving_aborts(server: ServerProcess, api: openai.OpenAI) -> None:
    url = server.url()
    fields: dict[str, Any] = {"prompt": "x", "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
    stream = api.completions.create(model="pilot", stream=True, **fields)
    next(iter(stream))
    assert running_requests(url) == 1
    stream.close()
    wait_until(lambda: running_requests(url) == 0)
    with pytest.raises(openai.APITimeoutError):
        api.with_options(timeout=0.3).completions.create(model="pilot", **fields)
    wait_until(lambda: running_requests(url) == 0)


def test_many_at_once(server: ServerProcess, api: openai.OpenAI) -> None:
    """More prompts than run together; each gets the answer that it gets alone."""
    prompts = [f"Question {i}: what is decode?" for i in range(12)]
    fields: dict[str, Any] = {"model": "pilot", "temperature": 0, "max_tokens": 8}
    together = api.completions.create(prompt=prompts, **fields)
    assert [choice.index for choice in together.choices] == list(range(12))
    alone = api.completions.create(prompt=prompts[7], **fields)
    assert together.choices[7].text == alone.choices[0].text
