"""``/v1/batches``: OpenAI's batches over stored files."""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.server.batches.openai_objects import (
    BatchList,
    BatchObject,
    BatchRequest,
    batch_object,
)
from twostroke.server.batches.queue import BatchQueue
from twostroke.server.batches.record import KEPT, WINDOW, BatchRecord, Times
from twostroke.server.files.answers import BATCH
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.errors import FileNotStoredError
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response

BATCHES_PATH = "/v1/batches"
MAX_PAGE = 100


class BatchRoutes:
    """The routes of one server; each key sees its own batches."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue

    def router(self) -> APIRouter:
        router = APIRouter(route_class=StrictRoute, tags=["batches"])
        path = BATCHES_PATH + "/{batch_id}"
        router.add_api_route(
            BATCHES_PATH,
            self.create_batch,
            methods=["POST"],
            response_class=Response,
            responses=_answers(BatchObject, "The batch.", posts=True, has_body=True),
        )
        router.add_api_route(
            BATCHES_PATH,
            self.list_batches,
            methods=["GET"],
            response_class=Response,
            responses=_answers(BatchList, "A page."),
        )
        router.add_api_route(
            path,
            self.show_batch,
            methods=["GET"],
            response_class=Response,
            responses=_answers(BatchObject, "The batch."),
        )
        router.add_api_route(
            path + "/cancel",
            self.cancel_batch,
            methods=["POST"],
            response_class=Response,
            responses=_answers(BatchObject, "The batch.", posts=True),
        )
        return router

    async def create_batch(self, body: BatchRequest, request: Request) -> Response:
        """Answer all requests of a file, beside everything else that the server does."""
        body.check_texts()
        tenant = caller_of(request.scope).tenant
        file = await self._queue.store.run(
            lambda files: files.get(tenant, body.input_file_id, [BATCH])
        )
        if file is None:
            raise FileNotStoredError(
                f"no file {body.input_file_id[:100]!a} of the purpose batch is stored for this key",
                param="input_file_id",
                hint="send it to /v1/files first",
            )
        record = _new_record(body, tenant, int(self._queue.store.clock()))
        await self._queue.add(record)
        return json_response(batch_object(record), ignored_header(body.dropped_fields()))

    async def list_batches(
        self,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    ) -> Response:
        """The key's batches, the newest first."""
        tenant = caller_of(request.scope).tenant
        try:
            records = await self._queue.page(tenant, "openai", limit + 1, after=after)
        except KeyError as error:
            raise InvalidRequestError(
                f"after is {str(after)[:100]!a}, which is none of the batches",
                param="after",
                hint="give the last_id of the page before",
            ) from error
        data = [batch_object(record) for record in records[:limit]]
        return json_response(
            BatchList(
                data=data,
                first_id=data[0].id if data else None,
                last_id=data[-1].id if data else None,
                has_more=len(records) > limit,
            )
        )

    async def show_batch(self, batch_id: str, request: Request) -> Response:
        """How far a batch has come."""
        tenant = caller_of(request.scope).tenant
        return json_response(batch_object(await self._queue.get(tenant, "openai", batch_id)))

    async def cancel_batch(self, batch_id: str, request: Request) -> Response:
        """End a batch; the answers that there are stay."""
        tenant = caller_of(request.scope).tenant
        return json_response(batch_object(await self._queue.cancel(tenant, "openai", batch_id)))


def _new_record(body: BatchRequest, tenant: str, now: int) -> BatchRecord:
    digits = uuid.uuid4().hex
    output = body.output_expires_after
    return BatchRecord(
        id=f"batch_{digits}",
        tenant=tenant,
        api="openai",
        url=body.endpoint,
        input_file=body.input_file_id,
        output_file=f"file-{uuid.uuid4().hex}",
        error_file=f"file-{uuid.uuid4().hex}",
        created=now,
        expires=now + WINDOW,
        times=Times(),
        output_seconds=KEPT if output is None else output.seconds,
        metadata=body.metadata,
    )


def _answers(
    answer: type[msgspec.Struct], description: str, *, posts: bool = False, has_body: bool = False
) -> Responses:
    """What a route may answer, for the API document."""
    statuses = (400, 401, 403, 500) + ((429,) if posts else ()) + ((413, 503) if has_body else ())
    errors: Responses = {status: ERROR_RESPONSES[status] for status in statuses}
    missing = "No batch or file of this id is stored for this key."
    errors |= {404: {**ERROR_RESPONSES[404], "description": missing}}
    return answer_responses(answer, description, has_body=has_body) | errors
