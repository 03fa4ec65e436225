"""Whatever clients send: no 5xx, no hang, no answer that the API document does not show.

By hand, with many more: ``TWOSTROKE_SCHEMATHESIS_EXAMPLES=300 pytest
tests/server/test_schemathesis.py``. Last: 300 for each operation, good and bad (3,900), after one
500 was mended (docs/lab/http-path.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.engine.clients.thread import AsyncEngine

MORE = os.environ.get("TWOSTROKE_SCHEMATHESIS_EXAMPLES")
EXAMPLES = int(MORE or "15")
SECONDS = 30  # after which a request hangs, also on a busy machine
# What is good for these: tests/server/batches/test_documented.py.
STORING = ["POST /v1/files", "POST /v1/batches", "POST /v1/messages/batches"]
# What is good for these has to be stored first, or is longer than this model's context:
# tests/server/responses/.
ELSEWHERE = [
    "POST /v1/responses/compact",
    "POST /v1/conversations/{conversation_id}",
    "POST /v1/conversations/{conversation_id}/items",
]
WITH_BODY = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /v1/rerank",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/cache/prefixes",
    "POST /pooling",
    "POST /embed",
    "POST /v2/embed",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/show",
    "POST /api/pull",
    "POST /v1/responses/input_tokens",
    "POST /v1/conversations",
    *STORING,
    *ELSEWHERE,
]
# They answer whatever is sent with the same refusal.
REFUSING = [
    "POST /api/push",
    "POST /api/create",
    "POST /api/copy",
    "DELETE /api/delete",
    "POST /api/blobs/{digest}",
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
]
STORED = [
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "POST /v1/responses/{response_id}/cancel",
]
CONVERSATIONS = [
    "GET /v1/conversations/{conversation_id}",
    "DELETE /v1/conversations/{conversation_id}",
    "GET /v1/conversations/{conversation_id}/items",
    "GET /v1/conversations/{conversation_id}/items/{item_id}",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
]
FILES = [
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "DELETE /v1/files/{file_id}",
]
BATCHES = [
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
    "GET /v1/messages/batches/{batch_id}",
    "POST /v1/messages/batches/{batch_id}/cancel",
    "GET /v1/messages/batches/{batch_id}/results",
    "DELETE /v1/messages/batches/{batch_id}",
]
WITHOUT = [
    "GET /tokenizer_info",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /metrics",
    "GET /load",
    "GET /v1/targets",
    "GET /v1/cache",
    "DELETE /v1/cache",
    "GET /v1/cache/events",
    "GET /version",
    "GET /",
    "GET /api/version",
    "GET /api/tags",
    "GET /api/ps",
    *REFUSING,
    "GET /v1/files",
    "GET /v1/batches",
    "GET /v1/messages/batches",
    *STORED,
    *CONVERSATIONS,
    *FILES,
    *BATCHES,
]
# A request may fit the schema and not the model (too long), or contradict itself (top_logprobs
# without logprobs).
EXCLUDED: list[CheckFunction] = [positive_data_acceptance]
# What the schema cannot know: this model's name, tokens and length. Half of the positive examples
# are given them.
TAME: dict[str, Any] = {
    "model": "tiny",
    "prompt": "the dog",
    "input": "the dog",
    "dimensions": 8,
    "text_1": "the dog",
    "text_2": ["a fox", "the dog"],
    "query": "the dog",
    "documents": ["a fox", "the dog"],
    "tokens": [5, 6, 7],
    "messages": [{"role": "user", "content": "x"}],
    "previous_response_id": None,
    "conversation": None,
    "name": "tiny",
    "texts": ["the dog"],
    "inputs": ["the dog"],
    "input_type": "search_query",
    "output_dimension": 8,
    "task": "embed",
    "prompt_name": None,
    "context": None,
}
GOOD = {
    "POST /detokenize": ("tokens",),
    "POST /v1/cache/prefixes": ("tokens",),
    "POST /v1/embeddings": ("input", "dimensions"),
    "POST /v1/score": ("text_1", "text_2"),
    "POST /v1/rerank": ("query", "documents"),
    "POST /pooling": ("input", "dimensions", "task"),
    "POST /embed": ("inputs", "dimensions"),
    "POST /v2/embed": ("texts", "model", "input_type", "output_dimension"),
    "POST /api/chat": ("messages", "model"),
    "POST /api/embed": ("input", "dimensions"),
    "POST /api/show": ("name",),
    "POST /api/pull": ("name",),
}
CONTEXT = 48


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with tiny_engine(max_model_len=CONTEXT, max_num_seqs=64) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture(scope="module")
def document(url: str) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_operation_is_tried(document: BaseSchema) -> None:
    operations = document.get_all_operations()
    labels = [found.ok().label for found in operations if isinstance(found, Ok)]
    assert sorted(labels) == sorted(WITH_BODY + WITHOUT)


@pytest.mark.parametrize("label", [i for i in WITH_BODY if i not in STORING + ELSEWHERE])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_good_request_is_answered_as_documented(
    document: BaseSchema, label: str, streamed: bool
) -> None:
    """Random bodies may all be too long or contradict themselves; these do not."""
    operation = document.find_operation_by_label(label)
    assert operation is not None
    fields = {
        "/v1/chat/completions": ("messages", "model"),
        "/v1/completions": ("prompt", "model"),
        "/v1/messages": ("messages", "model"),
        "/v1/messages/count_tokens": ("messages", "model"),
        "/v1/responses": ("input", "model"),
        "/v1/responses/input_tokens": ("input", "model"),
        "/v1/conversations": (),
    }
    body = {name: TAME[name] for name in fields.get(operation.path, GOOD.get(label, ("prompt",)))}
    if label == "POST /v1/responses":
        body |= {"stream": streamed, "max_output_tokens": 3, "top_logprobs": 2}
    elif "completions" in label:
        body |= {"stream": streamed, "n": 2, "max_tokens": 3, "return_token_ids": True}
        body["logprobs"] = True if "chat" in label else 2
    elif label == "POST /v1/messages":
        body |= {"stream": streamed, "max_tokens": 3, "system": "be brief"}
    elif label in ("POST /api/chat", "POST /api/generate"):
        body |= {"stream": streamed, "options": {"num_predict": 3}, "logprobs": True}
    case = operation.Case(body=body, media_type="application/json")
    assert case.call_and_validate(timeout=SECONDS).status_code == 200


@pytest.mark.parametrize("label", STORED)
def test_what_is_stored_is_shown_as_documented(document: BaseSchema, url: str, label: str) -> None:
    """Random ids are of nothing that is stored; this one is."""
    operation = document.find_operation_by_label(label)
    assert operation is not None
    body = {"input": "x", "max_output_tokens": 3, "background": True, "stream": True}
    events = httpx.post(f"{url}/v1/responses", json=body).text
    response_id = json.loads(events.splitlines()[1].removeprefix("data: "))["response"]["id"]
    case = operation.Case(path_parameters={"response_id": response_id})
    assert case.call_and_validate(timeout=SECONDS).status_code == 200


@pytest.mark.parametrize(
    ("label", "mode"),
    # What takes nothing can be asked nothing wrong.
    [(label, mode) for label in WITH_BODY for mode in GenerationMode]
    + [(i, GenerationMode.POSITIVE) for i in WITHOUT],
)
def test_operation(
    document: BaseSchema, engine: AsyncEngine, label: str, mode: GenerationMode
) -> None:
    operation = document.find_operation_by_label(label)
    assert operation is not None

    # Without the variable, the same examples each time: the suite repeats, exploring is done by
    # hand.
    @given(case=operation.as_strategy(generation_mode=mode), tame=st.booleans())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=not MORE,
    )
    def answers_as_documented(case: Case[Any], tame: bool) -> None:
        if tame and mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            known = {name: value for name, value in TAME.items() if name in case.body}
            if known:  # a body that is set anew is judged anew, and bytes of a file are no text
                case.body |= known
        response = case.call(timeout=SECONDS)
        # A 413 is a refusal, too, which that check does not know; and null says nothing, also in a
        # field that is not there.
        judged = response.status_code != 413 and not has_foreign_null(document, operation, case)
        unknown = [] if judged else [negative_data_rejection]
        case.validate_response(response, excluded_checks=[*EXCLUDED, *unknown])

    answers_as_documented()
    check_health(engine)


def has_foreign_null(document: BaseSchema, operation: Any, case: Case[Any]) -> bool:
    """Whether the body has a field that the document does not know, and null in it."""
    if not isinstance(case.body, dict):
        return False
    asked = document.raw_schema["paths"][operation.path][operation.method.lower()]["requestBody"]
    schema = asked["content"].get("application/json", {}).get("schema", {})
    if "$ref" not in schema:
        return False
    known = document.raw_schema["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    foreign = case.body.keys() - known["properties"].keys()
    return any(case.body[name] is None for name in foreign)


def test_the_bounds_of_every_field(url: str, engine: AsyncEngine) -> None:
    """Each value at and beside each bound of the document: a phase that only the command has."""
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{url}/openapi.json",
        "--phases",
        "coverage",
    ]
    command += [
        "--exclude-checks",
        "positive_data_acceptance",
        "--request-timeout",
        str(SECONDS),
        "--no-color",
    ]
    command += ["--continue-on-failure", "--no-shrink", "--seed", "1", "--warnings", "off"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert f"{len(WITH_BODY + WITHOUT)} passed" in ended.stdout
    check_health(engine)


def check_health(engine: AsyncEngine) -> None:
    """Nothing runs, nothing is held, and the engine is well."""
    wait_until(lambda: engine.status.stats.num_running + engine.status.stats.num_waiting == 0)
    assert engine.unhealthy_reason() is None
    assert engine.status.stats.free_blocks == engine.info.num_blocks
