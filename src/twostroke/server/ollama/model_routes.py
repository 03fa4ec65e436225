"""What clients ask before they use a model: whether there is a server, and what it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fastapi import APIRouter
from msgspec import Struct
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from twostroke.core.errors import TwostrokeError
from twostroke.inspector.model.facts import FindFacts
from twostroke.questions.model_facts import ModelFacts
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.ollama.documented import OLLAMA_ERRORS
from twostroke.server.ollama.generation_fields import MODEL
from twostroke.server.ollama.model_answers import (
    ListedModels,
    RunningModels,
    ShownModel,
    listed_model,
    running_model,
    shown_model,
)
from twostroke.server.ollama.names import known_name
from twostroke.server.ollama.option_fields import OllamaFields
from twostroke.server.ollama.route import OllamaRoute
from twostroke.server.state.server_state import ServerState

# The release of Ollama whose API this is: clients compare it with the one that they need.
API_VERSION = "0.12.11"
# Clients that look for Ollama compare the whole text.
GREETING = "Ollama is running"
_SHOWN_AS_IT_IS = "the model is shown as it is served"


class OllamaVersion(Struct):
    """Of Ollama's API; ``/version`` has the server's own."""

    version: str


class ShowRequest(OllamaFields):
    """Body of ``POST /api/show``."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("verbose", "system", "template", "options"), _SHOWN_AS_IT_IS
    )

    model: str | None = Field(None, description=MODEL)
    name: str | None = Field(None, description="Older name of model.")


def ollama_models_router(state: ServerState, find_facts: FindFacts) -> APIRouter:
    """The routes that say what is served.

    Args:
        find_facts: Tells of the loaded model.
    """
    router = APIRouter(route_class=OllamaRoute)
    greeting: Responses = {
        200: {
            "description": "The text by which clients know that Ollama's API is there.",
            "content": {"text/plain": {"schema": {"const": GREETING}}},
        },
        **{status: ERROR_RESPONSES[status] for status in (401, 403)},
    }
    refusals: Responses = {status: OLLAMA_ERRORS[status] for status in (401, 403)}
    unloaded = refusals | {503: OLLAMA_ERRORS[503]}

    async def facts() -> ModelFacts | None:
        try:
            return await find_facts()
        except TwostrokeError:  # encoders have no such description
            return None

    @router.head("/", include_in_schema=False)
    @router.get("/", response_class=PlainTextResponse, responses=greeting)
    async def ollama_greeting() -> Response:
        """Says that Ollama's API is here."""
        return PlainTextResponse(GREETING)

    @router.head("/api/version", include_in_schema=False)
    @router.get(
        "/api/version",
        response_class=Response,
        responses=answer_responses(OllamaVersion, "The version.") | refusals,
    )
    async def ollama_version() -> Response:
        """The release of Ollama whose API this is."""
        return json_response(OllamaVersion(API_VERSION))

    @router.head("/api/tags", include_in_schema=False)
    @router.get(
        "/api/tags",
        response_class=Response,
        responses=answer_responses(ListedModels, "All names of the model.") | unloaded,
    )
    async def ollama_tags() -> Response:
        """The names under which requests reach the model, each with its tag."""
        model = state.model()
        known = await facts()
        return json_response(ListedModels([listed_model(model, n, known) for n in model.names]))

    @router.get(
        "/api/ps",
        response_class=Response,
        responses=answer_responses(RunningModels, "The same, as it runs.") | unloaded,
    )
    async def ollama_ps() -> Response:
        """The model as it runs: it is loaded as long as the server runs."""
        model = state.model()
        known = await facts()
        return json_response(RunningModels([running_model(model, n, known) for n in model.names]))

    @router.post(
        "/api/show",
        response_class=Response,
        responses=answer_responses(ShownModel, "The model.", has_body=True) | OLLAMA_ERRORS,
    )
    async def ollama_show(body: ShowRequest) -> Response:
        """What the model is and what it can do."""
        model = state.model()
        name = known_name(model, body.model or body.name)
        shown = shown_model(model, name, await facts())
        return json_response(shown, ignored_header(body.dropped_fields()))

    return router
