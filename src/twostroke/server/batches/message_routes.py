"""``/v1/messages/batches``: Anthropic's batches of messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.server.anthropic.documented import ANTHROPIC_ERRORS
from twostroke.server.anthropic_shape import MESSAGES_PATH
from twostroke.server.batches.message_objects import (
    BATCHES_PATH,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchPage,
    message_batch,
)
from twostroke.server.batches.message_upload import store_requests
from twostroke.server.batches.queue import BatchQueue
from twostroke.server.batches.record import KEPT, WINDOW, BatchRecord, Times
from twostroke.server.batches.stored_lines import MAX_LINES
from twostroke.server.files.content import StoredContent
from twostroke.server.http.api_document import Responses, answer_responses
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response

MAX_PAGE = 1000
_RESULT = {"schema": {"type": "string", "description": "A line of JSON for each request."}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["requests"],
                    "properties": {
                        "requests": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": MAX_LINES,
                            "items": {
                                "type": "object",
                                "required": ["custom_id", "params"],
                                "properties": {
                                    "custom_id": {
                                        "type": "string",
                                        "pattern": "^[a-zA-Z0-9_-]{1,64}$",
                                    },
                                    "params": {
                                        "type": "object",
                                        "description": f"The body of {MESSAGES_PATH}.",
                                    },
                                },
                            },
                        }
                    },
                }
            }
        },
    }
}


class MessageBatchRoutes:
    """The routes of one server; each key sees its own batches."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue

    def router(self) -> APIRouter:
        router = APIRouter(tags=["message batches"])
        path = BATCHES_PATH + "/{batch_id}"
        router.add_api_route(
            BATCHES_PATH,
            self.create_message_batch,
            methods=["POST"],
            response_class=Response,
            responses=_answers(MessageBatch, "The batch.", posts=True, has_body=True),
            openapi_extra=_BODY,
        )
        router.add_api_route(
            BATCHES_PATH,
            self.list_message_batches,
            methods=["GET"],
            response_class=Response,
            responses=_answers(MessageBatchPage, "A page."),
        )
        router.add_api_route(
            path,
            self.show_message_batch,
            methods=["GET"],
            response_class=Response,
            responses=_answers(MessageBatch, "The batch."),
        )
        router.add_api_route(
            path + "/cancel",
            self.cancel_message_batch,
            methods=["POST"],
            response_class=Response,
            responses=_answers(MessageBatch, "The batch.", posts=True),
        )
        router.add_api_route(
            path,
            self.delete_message_batch,
            methods=["DELETE"],
            response_class=Response,
            responses=_answers(DeletedMessageBatch, "It is deleted."),
        )
        results = _answers(MessageBatch, "Its results.")
        results[200] = {
            "description": "A line of JSON for each request, in no certain order.",
            "content": {StoredContent.media_type: _RESULT},
        }
        router.add_api_route(
            path + "/results",
            self.message_batch_results,
            methods=["GET"],
            response_class=Response,
            responses=results,
        )
        return router

    async def create_message_batch(self, request: Request) -> Response:
        """Answer many messages, beside everything else that the server does."""
        tenant = caller_of(request.scope).tenant
        self._queue.check_number(tenant)
        uploaded = await store_requests(self._queue.workplace, request, tenant)
        now = int(self._queue.store.clock())
        record = BatchRecord(
            id=f"msgbatch_{uuid.uuid4().hex}",
            tenant=tenant,
            api="messages",
            url=MESSAGES_PATH,
            input_file=uploaded.file_id,
            output_file=f"file-{uuid.uuid4().hex}",
            error_file=f"file-{uuid.uuid4().hex}",
            created=now,
            expires=now + WINDOW,
            times=Times(),
            total=uploaded.total,
            output_seconds=KEPT,
        )
        try:
            await self._queue.add(record, uploaded.unanswered_bytes)
        except BaseException:
            await self._queue.store.run(lambda files: files.delete(uploaded.file_id))
            raise
        return json_response(message_batch(record), ignored_header(uploaded.ignored))

    async def list_message_batches(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Response:
        """The key's batches, the newest first."""
        tenant = caller_of(request.scope).tenant
        try:
            records = await self._queue.page(
                tenant, "messages", limit + 1, after=after_id, before=before_id
            )
        except KeyError as error:
            raise InvalidRequestError(
                "after_id or before_id is none of the batches",
                param="after_id" if after_id is not None else "before_id",
                hint="give the last_id of the page before, or the first_id of the one behind",
            ) from error
        backwards = before_id is not None and after_id is None
        shown = records[-limit:] if backwards else records[:limit]
        data = [message_batch(record) for record in shown]
        return json_response(
            MessageBatchPage(
                data=data,
                has_more=len(records) > limit,
                first_id=data[0].id if data else None,
                last_id=data[-1].id if data else None,
            )
        )

    async def show_message_batch(self, batch_id: str, request: Request) -> Response:
        """How far a batch has come."""
        tenant = caller_of(request.scope).tenant
        return json_response(message_batch(await self._queue.get(tenant, "messages", batch_id)))

    async def cancel_message_batch(self, batch_id: str, request: Request) -> Response:
        """End a batch; the answers that there are stay."""
        tenant = caller_of(request.scope).tenant
        return json_response(message_batch(await self._queue.cancel(tenant, "messages", batch_id)))

    async def delete_message_batch(self, batch_id: str, request: Request) -> Response:
        """Forget a batch that has ended, and its results."""
        record = await _ended(
            self._queue, request, batch_id, "cancel it first, or wait for its end"
        )
        await self._queue.delete(record)
        return json_response(DeletedMessageBatch(record.id))

    async def message_batch_results(self, batch_id: str, request: Request) -> Response:
        """What became of each request of a batch that has ended."""
        record = await _ended(self._queue, request, batch_id, "wait for its end")
        return StoredContent(_both_files(self._queue, record))


async def _both_files(queue: BatchQueue, record: BatchRecord) -> AsyncIterator[bytes]:
    for file_id in (record.output_file, record.error_file):
        async for piece in queue.store.contents(file_id):
            yield piece


async def _ended(queue: BatchQueue, request: Request, batch_id: str, hint: str) -> BatchRecord:
    record = await queue.get(caller_of(request.scope).tenant, "messages", batch_id)
    if not record.has_ended:
        raise InvalidRequestError(f"{record.id} has not ended", param="batch_id", hint=hint)
    return record


def _answers(
    answer: type[msgspec.Struct], description: str, *, posts: bool = False, has_body: bool = False
) -> Responses:
    """What a route may answer, for the API document."""
    statuses = (400, 401, 403, 500) + ((429,) if posts else ()) + ((413,) if has_body else ())
    errors: Responses = {status: ANTHROPIC_ERRORS[status] for status in statuses}
    missing = "No batch of this id is stored for this key."
    errors |= {404: {**ANTHROPIC_ERRORS[404], "description": missing}}
    return answer_responses(answer, description, has_body=has_body) | errors
