"""Batches of messages as Anthropic's API has them, and the lines of their results."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from twostroke.batch.lines import BatchOutput, GoodLine
from twostroke.server.anthropic_shape import anthropic_error, anthropic_request_id
from twostroke.server.batches.record import BatchRecord

# Of files that only the batch knows; ``/v1/files`` lists none of them.
HIDDEN = "messages"
BATCHES_PATH = "/v1/messages/batches"


class MessageBatchCounts(Struct, kw_only=True):
    """How many requests stand how; all are processing until the batch ends."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(Struct, kw_only=True, tag_field="type", tag="message_batch"):
    """One batch; times as in RFC 3339."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class MessageBatchPage(Struct, kw_only=True):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(Struct, tag_field="type", tag="message_batch_deleted"):
    id: str


class Result(Struct, kw_only=True, omit_defaults=True):
    """What became of one request: its message, or its error in the API's shape."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    error: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] | msgspec.UnsetType = (
        msgspec.UNSET
    )


class MessageBatchResult(Struct):
    """One line of results."""

    custom_id: str
    result: Result


def message_batch(record: BatchRecord) -> MessageBatch:
    """A batch as clients see it."""
    status: Literal["in_progress", "canceling", "ended"] = "in_progress"
    if record.has_ended:
        status = "ended"
    elif record.shown_status == "cancelling":
        status = "canceling"
    return MessageBatch(
        id=record.id,
        processing_status=status,
        request_counts=_counts(record),
        created_at=_time(record.created),
        expires_at=_time(record.expires),
        ended_at=None if record.times.ended is None else _time(record.times.ended),
        cancel_initiated_at=(
            None if record.times.cancelling is None else _time(record.times.cancelling)
        ),
        # Relative: the client knows by which address and through which proxies it came.
        results_url=f"{BATCHES_PATH}/{record.id}/results" if record.has_ended else None,
    )


def _counts(record: BatchRecord) -> MessageBatchCounts:
    if not record.has_ended:
        return MessageBatchCounts(processing=record.total)
    counts = MessageBatchCounts(succeeded=record.completed, errored=record.failed)
    left = record.total - record.completed - record.failed
    match record.status:
        case "cancelled":
            counts.canceled = left
        case "expired":
            counts.expired = left
        case _:
            counts.errored += left
    return counts


class MessagesOutput:
    """Implements ``OutputForm``."""

    purpose = HIDDEN

    def answered(self, output: BatchOutput) -> bytes:
        response, error = output.response, output.error
        if output.succeeded and response is not None:
            result = Result(type="succeeded", message=response.body)
        elif error is None and response is not None:
            result = Result(type="errored", error=response.body)
        else:
            message = "the request failed" if error is None else error.message
            request_id = "" if response is None else response.request_id
            result = _errored(message, request_id)
        return msgspec.json.encode(MessageBatchResult(output.custom_id or "", result))

    def unanswered(self, line: GoodLine, record: BatchRecord) -> bytes:
        match record.outcome:
            case "cancelled":
                result = Result(type="canceled")
            case "expired":
                result = Result(type="expired")
            case _:
                result = _errored("the batch ended before this request was answered", record.id)
        return msgspec.json.encode(MessageBatchResult(line.custom_id, result))


def _errored(message: str, name: str) -> Result:
    error: Any = anthropic_error(message, 500, None, anthropic_request_id(name[-32:]))
    return Result(type="errored", error=Raw(msgspec.json.encode(error)))


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
