"""OpenAI's files: what batches read, and what they have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.server.files.answers import (
    PURPOSES,
    DeletedFile,
    FileList,
    FileObject,
    file_object,
)
from twostroke.server.files.content import StoredContent
from twostroke.server.files.store import FileStore
from twostroke.server.files.table import StoredFile
from twostroke.server.files.upload import MONTH, SHORTEST, upload
from twostroke.server.http.api_document import (
    ERROR_RESPONSES,
    Responses,
    answer_responses,
)
from twostroke.server.http.errors import FileNotStoredError
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response

FILES_PATH = "/v1/files"
MAX_PAGE = 10_000
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"enum": ["batch"]},
                        "file": {"type": "string", "format": "binary"},
                        "expires_after[anchor]": {"enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": SHORTEST,
                            "maximum": MONTH,
                        },
                    },
                }
            }
        },
    }
}


class FileRoutes:
    """The routes of one server; each key sees its own files.

    Args:
        reader_of: The id of a batch that still reads the file of this id.
    """

    def __init__(self, store: FileStore, reader_of: Callable[[str], str | None]) -> None:
        self._store = store
        self._reader_of = reader_of

    def router(self) -> APIRouter:
        router = APIRouter(tags=["files"])
        path = FILES_PATH + "/{file_id}"
        router.add_api_route(
            FILES_PATH,
            self.create_file,
            methods=["POST"],
            response_class=Response,
            responses=_answers(FileObject, "The file.", stores=True),
            openapi_extra=_FORM,
        )
        router.add_api_route(
            FILES_PATH,
            self.list_files,
            methods=["GET"],
            response_class=Response,
            responses=_answers(FileList, "A page."),
        )
        router.add_api_route(
            path,
            self.show_file,
            methods=["GET"],
            response_class=Response,
            responses=_answers(FileObject, "The file."),
        )
        content = _answers(FileObject, "Its bytes.")
        content[200] = {
            "description": "Its bytes.",
            "content": {StoredContent.media_type: {"schema": {"type": "string"}}},
        }
        router.add_api_route(
            path + "/content",
            self.file_content,
            methods=["GET"],
            response_class=Response,
            responses=content,
        )
        router.add_api_route(
            path,
            self.delete_file,
            methods=["DELETE"],
            response_class=Response,
            responses=_answers(DeletedFile, "It is deleted."),
        )
        return router

    async def create_file(self, request: Request) -> Response:
        """Store a file of requests for a batch, as lines of JSON."""
        file, ignored = await upload(self._store, request, caller_of(request.scope).tenant)
        return json_response(file_object(file), ignored_header(ignored))

    async def list_files(
        self,
        request: Request,
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The key's files, the newest first."""
        purposes = [p for p in PURPOSES if purpose in (None, p)]
        tenant, newest = caller_of(request.scope).tenant, order == "desc"
        try:
            files = await self._store.run(
                lambda table: table.page(tenant, purposes, after, limit + 1, newest_first=newest)
            )
        except KeyError as error:
            raise InvalidRequestError(
                f"after is {str(after)[:100]!a}, which is none of the files",
                param="after",
                hint="give the last_id of the page before",
            ) from error
        data = [file_object(file) for file in files[:limit]]
        return json_response(
            FileList(
                data=data,
                first_id=data[0].id if data else None,
                last_id=data[-1].id if data else None,
                has_more=len(files) > limit,
            )
        )

    async def show_file(self, file_id: str, request: Request) -> Response:
        """What is known of a file."""
        return json_response(file_object(await stored_file(self._store, request, file_id)))

    async def file_content(self, file_id: str, request: Request) -> Response:
        """What is in a file."""
        file = await stored_file(self._store, request, file_id)
        return StoredContent(self._store.contents(file.id), file.num_bytes)

    async def delete_file(self, file_id: str, request: Request) -> Response:
        """Delete a file that no batch reads any more."""
        file = await stored_file(self._store, request, file_id)
        if (batch := self._reader_of(file.id)) is not None:
            raise InvalidRequestError(
                f"the file is read by {batch}, which has not ended",
                param="file_id",
                hint="wait for its end, or cancel it",
            )
        await self._store.run(lambda table: table.delete(file.id))
        return json_response(DeletedFile(id=file.id))


async def stored_file(store: FileStore, request: Request, file_id: str) -> StoredFile:
    """A file of the caller's key.

    Raises:
        FileNotStoredError: There is none of this id.
    """
    tenant = caller_of(request.scope).tenant
    file = await store.run(lambda table: table.get(tenant, file_id, PURPOSES))
    if file is None:
        raise FileNotStoredError(
            f"no file {file_id[:100]!a} is stored for this key", param="file_id"
        )
    return file


def _answers(answer: type[msgspec.Struct], description: str, *, stores: bool = False) -> Responses:
    """What a route may answer, for the API document.

    Args:
        stores: It is a POST with a body that is kept.
    """
    statuses = (400, 401, 403, 500) + ((413, 429) if stores else ())
    errors: Responses = {status: ERROR_RESPONSES[status] for status in statuses}
    missing = "No file of this id is stored for this key."
    errors |= {404: {**ERROR_RESPONSES[404], "description": missing}}
    if stores:
        too_large = "The file is larger than --max-file-size, or the store of files is full."
        errors |= {413: {**ERROR_RESPONSES[413], "description": too_large}}
    return answer_responses(answer, description, has_body=stores) | errors
