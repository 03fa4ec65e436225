"""What is stored is shown as the API document says; random ids are of nothing that is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from anthropic.types import messages
from openai.types import Batch, FileDeleted, FileObject
from schemathesis.schemas import BaseSchema

from tests.server.batches.batch_calls import (
    CHAT,
    lines,
    message_requests,
    once,
    post_file,
    quick_engine,
    served,
)
from tests.server.test_schemathesis import BATCHES, FILES, STORING

SECONDS = 30


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(quick_engine()) as url:
        yield url


@pytest.fixture(scope="module")
def document(url: str) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def read(url: str) -> Any:
    response = httpx.get(url)
    assert response.status_code == 200, response.text
    return response.json()


def stored(url: str, label: str) -> str:
    """The id of something that a route can show."""
    if "/messages/" in label:
        path = f"{url}/v1/messages/batches"
        batch_id: str = httpx.post(path, json={"requests": message_requests(2)}).json()["id"]
        once(
            lambda: read(f"{path}/{batch_id}"), lambda batch: batch["processing_status"] == "ended"
        )
        return batch_id
    file_id: str = post_file(url, lines(2)).json()["id"]
    if label in FILES:
        return file_id
    fields = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    made: str = httpx.post(f"{url}/v1/batches", json=fields).json()["id"]
    once(lambda: read(f"{url}/v1/batches/{made}"), lambda batch: batch["status"] == "completed")
    return made


@pytest.mark.parametrize("label", FILES + BATCHES)
def test_what_is_stored_is_shown_as_documented(document: BaseSchema, url: str, label: str) -> None:
    operation = document.find_operation_by_label(label)
    assert operation is not None
    name = "file_id" if label in FILES else "batch_id"
    case = operation.Case(path_parameters={name: stored(url, label)})
    assert case.call_and_validate(timeout=SECONDS).status_code == 200


@pytest.mark.parametrize("label", STORING)
def test_what_is_good_is_taken_as_documented(document: BaseSchema, url: str, label: str) -> None:
    operation = document.find_operation_by_label(label)
    assert operation is not None
    bodies: dict[str, tuple[str, Any]] = {
        "POST /v1/files": ("multipart/form-data", {"purpose": "batch", "file": lines(2)}),
        "POST /v1/batches": (
            "application/json",
            {
                "input_file_id": post_file(url, lines(2)).json()["id"],
                "endpoint": CHAT,
                "completion_window": "24h",
                "metadata": {"a": "b"},
                "output_expires_after": {"anchor": "created_at", "seconds": 3600},
            },
        ),
        "POST /v1/messages/batches": ("application/json", {"requests": message_requests(2)}),
    }
    media_type, body = bodies[label]
    case = operation.Case(body=body, media_type=media_type)
    assert case.call_and_validate(timeout=SECONDS).status_code == 200


def test_lists_are_as_documented(document: BaseSchema, url: str) -> None:
    for label in (*BATCHES[:1], *BATCHES[2:3], *FILES[:1]):
        stored(url, label)
    for kind in ("files", "batches", "messages/batches"):
        operation = document.find_operation_by_label(f"GET /v1/{kind}")
        assert operation is not None
        response = operation.Case(query={"limit": 1}).call_and_validate(timeout=SECONDS)
        assert response.status_code == 200 and len(response.json()["data"]) == 1


def test_objects_are_of_the_clients_types(url: str) -> None:
    """Clients believe what they get; their models, asked to validate, do not."""
    file = post_file(url, lines(2)).json()
    FileObject.model_validate(file)
    batch = read(f"{url}/v1/batches/{stored(url, 'POST /v1/batches')}")
    Batch.model_validate(batch)
    path = f"{url}/v1/messages/batches/{stored(url, 'POST /v1/messages/batches')}"
    messages.MessageBatch.model_validate(read(path))
    for text in httpx.get(f"{path}/results").text.splitlines():
        messages.MessageBatchIndividualResponse.model_validate_json(text)
    messages.DeletedMessageBatch.model_validate(httpx.delete(path).json())
    FileDeleted.model_validate(httpx.delete(f"{url}/v1/files/{file['id']}").json())
