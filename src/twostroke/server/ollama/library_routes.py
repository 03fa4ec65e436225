"""Routes that would change which models there are: one is served, chosen when the server starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

from fastapi import APIRouter
from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.api_document import Responses
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import encode_json, json_response
from twostroke.server.ollama.documented import OLLAMA_ERRORS, line_responses
from twostroke.server.ollama.generation_answer import LINES
from twostroke.server.ollama.generation_fields import MODEL
from twostroke.server.ollama.names import known_model, known_name
from twostroke.server.ollama.option_fields import OllamaFields
from twostroke.server.ollama.route import OllamaRoute
from twostroke.server.state.server_state import ServerState

_NOTHING_FETCHED = "nothing is fetched"


class PullRequest(OllamaFields):
    """Body of ``POST /api/pull``."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("insecure", "username", "password"), _NOTHING_FETCHED
    )

    model: str | None = Field(None, description=MODEL)
    name: str | None = Field(None, description="Older name of model.")
    stream: bool | None = Field(None, description="True by default: the status is a line of JSON.")


class PullStatus(Struct):
    status: str


def ollama_library_router(state: ServerState) -> APIRouter:
    """The routes by which Ollama's clients manage models."""
    router = APIRouter(route_class=OllamaRoute)

    @router.post(
        "/api/pull", response_class=Response, responses=line_responses(PullStatus) | OLLAMA_ERRORS
    )
    async def ollama_pull(body: PullRequest) -> Response:
        """Done already if the model is the served one, since many clients pull before they use it.

        Another is not there, and is not fetched.
        """
        asked = body.model or body.name
        known_name(known_model(state.model(asked), asked), asked)
        headers, done = ignored_header(body.dropped_fields()), PullStatus("success")
        if body.stream is False:
            return json_response(done, headers)
        return Response(encode_json(done) + b"\n", headers=headers, media_type=LINES)

    refusals: Responses = {
        status: OLLAMA_ERRORS[status] for status in (400, 401, 403, 413, 429, 503)
    }

    def refuse(what: str) -> NoReturn:
        raise InvalidRequestError(
            f"this server does not {what} models",
            hint="the model is chosen when the server starts: twostroke serve MODEL",
        )

    @router.post("/api/push", response_class=Response, responses=refusals)
    async def ollama_push() -> Response:
        """Refused: nothing is uploaded."""
        refuse("push")

    @router.post("/api/create", response_class=Response, responses=refusals)
    async def ollama_create() -> Response:
        """Refused: models are made elsewhere."""
        refuse("create")

    @router.post("/api/copy", response_class=Response, responses=refusals)
    async def ollama_copy() -> Response:
        """Refused: further names are given with --served-model-name."""
        refuse("copy")

    @router.delete("/api/delete", response_class=Response, responses=refusals)
    async def ollama_delete() -> Response:
        """Refused: the served model stays."""
        refuse("delete")

    @router.post("/api/blobs/{digest}", response_class=Response, responses=refusals)
    async def ollama_blob(digest: str) -> Response:
        """Refused: there are no blobs."""
        refuse("store parts of")

    return router
