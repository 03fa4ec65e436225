"""A request that is too long says so in the words and the code by which clients know it.

LiteLLM's fallbacks to models with a longer context depend on the words; LangChain looks for
the code in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.server.running import running_server
from tests.server.tiny import CONTEXT, tiny_engine

# Of `is_error_str_context_window_exceeded` in LiteLLM's exception_mapping_utils.py; it compares in
# lower case.
LITELLM = "this model's maximum context length is"
LONG = "the dog " * CONTEXT


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        yield url + "/v1"


def error_of(url: str, **fields: Any) -> openai.BadRequestError:
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0) as api,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        if "prompt" in fields:
            api.completions.create(model="tiny", **fields)
        else:
            api.chat.completions.create(model="tiny", **fields)
    return caught.value


USER = [{"role": "user", "content": "the dog"}]
LONG_CHAT = [{"role": "user", "content": LONG}]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": LONG},
        {"prompt": "the dog", "max_tokens": CONTEXT},
        {"prompt": "the dog" * 590_000},
        {"messages": LONG_CHAT},
        {"messages": USER, "max_tokens": CONTEXT},
        {"messages": LONG_CHAT, "extra_body": {"context": {}}},
        {"messages": USER, "max_tokens": CONTEXT, "extra_body": {"context": {}}},
    ],
)
def test_the_words_and_the_code(url: str, fields: dict[str, Any]) -> None:
    error = error_of(url, **fields)
    assert error.code == "context_length_exceeded"
    assert LITELLM in str(error).lower()
    stated = re.search(r"maximum context length is (\d+) tokens\. However, ", str(error))
    assert stated is not None and int(stated[1]) == CONTEXT


def test_the_numbers(url: str) -> None:
    error = error_of(url, prompt=[5, 6, 7], max_tokens=CONTEXT)
    counts = f"you requested {CONTEXT + 3} tokens (3 in the prompt, {CONTEXT} in the completion)"
    assert counts in str(error)


def test_langchain_knows_it(url: str) -> None:
    chat = ChatOpenAI(model="tiny", base_url=url, api_key=SecretStr("none"), max_retries=0)
    with pytest.raises(ContextOverflowError):
        chat.invoke(LONG)
