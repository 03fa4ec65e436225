"""``GET /v1/models``."""

from __future__ import annotations

from fastapi import APIRouter
from msgspec import Struct
from starlette.responses import Response

from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.json_response import json_response
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


class ModelCard(Struct, kw_only=True):
    __doc__ = (
        "One name of the model, or an adapter, whose ``parent`` is the model. ``root`` is the name"
        " that answers carry, ``max_model_len`` as in vLLM."
    )

    id: str
    object: str = "model"
    created: int
    owned_by: str = "twostroke"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


def models_router(state: ServerState) -> APIRouter:
    """The routes that list the served models and show one."""
    router = APIRouter(tags=["models"])
    errors: Responses = {status: ERROR_RESPONSES[status] for status in (401, 403, 404, 503)}
    listed = answer_responses(ModelList, "All names of the model.") | {
        status: errors[status] for status in (401, 403, 503)
    }

    @router.get("/models", include_in_schema=False)
    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", response_class=Response, responses=listed)
    async def list_models() -> Response:
        """The names under which requests reach the model."""
        cards = [_card(model, name) for model in state.models() for name in model.all_names]
        return json_response(ModelList(data=cards))

    @router.get(
        "/v1/models/{name:path}",
        response_class=Response,
        responses=answer_responses(ModelCard, "One name.") | errors,
    )
    async def show_model(name: str) -> Response:
        """One of them."""
        model = state.model(name)
        model.named(name)
        return json_response(_card(model, name))

    return router


def _card(model: ServedModel, name: str) -> ModelCard:
    adapter = None if name in model.names else model.client.adapters.get(name)
    return ModelCard(
        id=name,
        created=model.created if adapter is None else adapter.created,
        root=model.name if adapter is None else name,
        parent=None if adapter is None else model.name,
        max_model_len=model.client.info.max_model_len,
    )
