"""Batches as OpenAI's API has them: the request, the object, and the lines of output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from annotated_types import MaxLen
from msgspec import Struct
from pydantic import Field, field_validator

from twostroke.batch.expected import URLS
from twostroke.batch.lines import BatchError, BatchOutput, GoodLine
from twostroke.server.batches.record import KEPT, BatchRecord, Mistake, Status
from twostroke.server.files.answers import BATCH_OUTPUT
from twostroke.server.files.upload import SHORTEST
from twostroke.server.http.body_fields import StrictModel, check_unicode
from twostroke.server.http.validation_errors import explained

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
_WINDOW = "24h"
_Metadata = Annotated[
    dict[
        Annotated[str, MaxLen(MAX_METADATA_KEY)],
        Annotated[str, MaxLen(MAX_METADATA_VALUE)],
    ],
    MaxLen(MAX_METADATA),
]


class ExpiresAfter(StrictModel):
    """How long output is kept."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=SHORTEST, le=KEPT)


class BatchRequest(StrictModel):
    """Body of ``POST /v1/batches``."""

    nested: ClassVar[tuple[str, ...]] = ("output_expires_after",)
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {"endpoint": {"enum": [*URLS]}}

    input_file_id: str = Field(description="A file of the purpose batch.")
    endpoint: str = Field(description="What all of its requests ask.")
    completion_window: Literal["24h"] = Field(
        description="After it, requests that have not been answered have expired."
    )
    metadata: _Metadata | None = Field(None, description="Kept and returned.")
    output_expires_after: ExpiresAfter | None = None

    @field_validator("endpoint")
    @classmethod
    def _is_answered(cls, url: str) -> str:
        if url not in URLS:
            raise explained(
                f"batches cannot ask {url[:100]!a} here", f"there are {', '.join(URLS)}"
            )
        return url

    def check_texts(self) -> None:
        """Refuse lone surrogates, which cannot be stored."""
        check_unicode("input_file_id", [self.input_file_id])
        check_unicode("metadata", [text for pair in (self.metadata or {}).items() for text in pair])


class BatchErrors(Struct):
    data: list[Mistake]
    object: Literal["list"] = "list"


class BatchCounts(Struct):
    total: int
    completed: int
    failed: int


class BatchObject(Struct, kw_only=True):
    """One batch; times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str = _WINDOW
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: Sequence[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_object(record: BatchRecord) -> BatchObject:
    """A batch as clients see it."""
    ended = {record.status: record.times.ended}
    return BatchObject(
        id=record.id,
        endpoint=record.url,
        errors=BatchErrors([*record.mistakes]) if record.mistakes else None,
        input_file_id=record.input_file,
        status=record.shown_status,
        output_file_id=record.output_file or None if record.has_ended else None,
        error_file_id=record.error_file or None if record.has_ended else None,
        created_at=record.created,
        in_progress_at=record.times.in_progress,
        expires_at=record.expires,
        finalizing_at=record.times.finalizing,
        completed_at=ended.get("completed"),
        failed_at=ended.get("failed"),
        expired_at=ended.get("expired"),
        cancelling_at=record.times.cancelling,
        cancelled_at=ended.get("cancelled"),
        request_counts=BatchCounts(record.total, record.completed, record.failed),
        metadata=record.metadata,
    )


class OpenAIOutput:
    """Implements ``OutputForm``: the lines that ``twostroke batch`` writes."""

    purpose = BATCH_OUTPUT

    def answered(self, output: BatchOutput) -> bytes:
        return msgspec.json.encode(output)

    def unanswered(self, line: GoodLine, record: BatchRecord) -> bytes:
        code = f"batch_{record.outcome}"
        message = "the batch ended before this request was answered"
        error = BatchError(code, message, line.number)
        return msgspec.json.encode(BatchOutput(line.id, line.custom_id, None, error))
