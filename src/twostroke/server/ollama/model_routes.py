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
from twostroke.server.ollama.names import known_model, known_name
from twostroke.server.ollama.option_fields import OllamaFields
from twostroke.server.ollama.route import OllamaRoute
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState

# The release of Ollama whose API this is: clients compare it with the one that they need.
API_VERSION = "0.12.11"
# Clients that look for Ollama compare the whole text.
GREETING = "Ollama is running"
_SHOWN_AS_IT_IS = "the model is shown as it is served"


class OllamaVersion(Struct):
    """The version of Ollama's API; ``/version`` has the server's own."""

    version: str


class ShowRequest(OllamaFields):
    """Body of ``POST /api/show``."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("verbose", "system", "template", "options"), _SHOWN_AS_IT_IS
    )

    model: str | None = Field(None, description=MODEL)
    name: str | None = Field(None, description="Older name of model.")


class OllamaModelRoutes:
    """The routes that say what is served.

    Args:
        find_facts: Tells of the loaded model.
    """

    def __init__(self, state: ServerState, find_facts: FindFacts) -> None:
        self._state = state
        self._find_facts = find_facts

    def router(self) -> APIRouter:
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

        router.add_api_route(
            "/",
            self.ollama_greeting,
            methods=["GET"],
            response_class=PlainTextResponse,
            responses=greeting,
        )
        router.add_api_route("/", self.ollama_greeting, methods=["HEAD"], include_in_schema=False)
        router.add_api_route(
            "/api/version",
            self.ollama_version,
            methods=["GET"],
            response_class=Response,
            responses=answer_responses(OllamaVersion, "The version.") | refusals,
        )
        router.add_api_route(
            "/api/version", self.ollama_version, methods=["HEAD"], include_in_schema=False
        )
        router.add_api_route(
            "/api/tags",
            self.ollama_tags,
            methods=["GET"],
            response_class=Response,
            responses=answer_responses(ListedModels, "All names of the model.") | unloaded,
        )
        router.add_api_route(
            "/api/tags", self.ollama_tags, methods=["HEAD"], include_in_schema=False
        )
        router.add_api_route(
            "/api/ps",
            self.ollama_ps,
            methods=["GET"],
            response_class=Response,
            responses=answer_responses(RunningModels, "The same, as it runs.") | unloaded,
        )
        router.add_api_route(
            "/api/show",
            self.ollama_show,
            methods=["POST"],
            response_class=Response,
            responses=answer_responses(ShownModel, "The model.", has_body=True) | OLLAMA_ERRORS,
        )
        return router

    async def ollama_greeting(self) -> Response:
        """Says that Ollama's API is here."""
        return PlainTextResponse(GREETING)

    async def ollama_version(self) -> Response:
        """The release of Ollama whose API this is."""
        return json_response(OllamaVersion(API_VERSION))

    async def ollama_tags(self) -> Response:
        """The names under which requests reach the model, each with its tag."""
        listed = [
            listed_model(model, name, await self._facts(model))
            for model in self._state.models()
            for name in model.all_names
        ]
        return json_response(ListedModels(listed))

    async def ollama_ps(self) -> Response:
        """The model as it runs: it is loaded as long as the server runs."""
        running = [
            running_model(model, name, await self._facts(model))
            for model in self._state.models()
            for name in model.all_names
        ]
        return json_response(RunningModels(running))

    async def ollama_show(self, body: ShowRequest) -> Response:
        """What the model is and what it can do."""
        asked = body.model or body.name
        model = known_model(self._state.model(asked), asked)
        name = known_name(model, asked)
        shown = shown_model(model, name, await self._facts(model))
        return json_response(shown, ignored_header(body.dropped_fields()))

    async def _facts(self, model: ServedModel) -> ModelFacts | None:
        """What is known of the main model; of others nothing beside what their engines say."""
        if model.client is not self._state.model().client:
            return None
        try:
            return await self._find_facts()
        except TwostrokeError:  # encoders have no such description
            return None
