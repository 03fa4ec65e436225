"""Whatever clients send: no 5xx, no hang, no answer that the API document does not show.

By hand, with many more: ``TWOSTROKE_SCHEMATHESIS_EXAMPLES=300 pytest
tests/server/test_schemathesis.py``. Last: 300 for each operation, good and bad (3,900), after one
500 was mended (docs/lab/http-path.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.server.running import running_server, wait_until
from tests.server.tiny import tiny_engine
from twostroke.engine.clients.thread import AsyncEngine

MORE = os.environ.get("TWOSTROKE_SCHEMATHESIS_EXAMPLES")
EXAMPLES = int(MORE or "15")
SECONDS = 30  # after which a request hangs, also on a busy machine
WITH_BODY = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /tokenize",
    "POST /detokenize",
]
WITHOUT = ["GET /v1/models", "GET /v1/models/{name}", "GET /health", "GET /metrics", "GET /version"]
# A request may fit the schema and not the model (too long), or contradict itself (top_logprobs
# without logprobs).
EXCLUDED: list[CheckFunction] = [positive_data_acceptance]
# What the schema cannot know: this model's name, tokens and length. Half of the positive examples
# are given them.
TAME: dict[str, Any] = {
    "model": "tiny",
    "prompt": "the dog",
    "tokens": [5, 6, 7],
    "messages": [{"role": "user", "content": "x"}],
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
    assert [
        found.ok().label for found in document.get_all_operations() if isinstance(found, Ok)
    ] == WITH_BODY + WITHOUT


@pytest.mark.parametrize("label", WITH_BODY)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_good_request_is_answered_as_documented(
    document: BaseSchema, label: str, streamed: bool
) -> None:
    """Random bodies may all be too long or contradict themselves; these do not."""
    operation = document.find_operation_by_label(label)
    assert operation is not None
    fields = {"/v1/chat/completions": ("messages", "model"), "/v1/completions": ("prompt", "model")}
    body = {
        name: TAME[name]
        for name in fields.get(operation.path, ("tokens" if "detokenize" in label else "prompt",))
    }
    if operation.path in fields:
        body |= {"stream": streamed, "n": 2, "max_tokens": 3, "return_token_ids": True}
        body["logprobs"] = True if "chat" in label else 2
    case = operation.Case(body=body, media_type="application/json")
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
            case.body |= {name: value for name, value in TAME.items() if name in case.body}
        case.call_and_validate(timeout=SECONDS, excluded_checks=EXCLUDED)

    answers_as_documented()
    check_health(engine)


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
    wait_until(lambda: engine.stats().num_running + engine.stats().num_waiting == 0)
    assert engine.unhealthy_reason() is None
    assert engine.stats().free_blocks == engine.info.num_blocks
