"""``GET /v1/models`` as Anthropic's clients expect it: those that send its version header."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from twostroke.core.errors import InvalidRequestError
from twostroke.server.anthropic_shape import MODELS_PATH, speaks_anthropic
from twostroke.server.http.json_response import json_response
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState

PAGE_SIZE, MAX_PAGE_SIZE = 20, 1000


class ModelInfo(Struct, kw_only=True, tag_field="type", tag="model"):
    """One name of the model."""

    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(Struct, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class _AnthropicRoute(APIRoute):
    """A route that only requests of Anthropic's clients reach."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if speaks_anthropic(scope) else (Match.NONE, {})


def anthropic_models_router(state: ServerState) -> APIRouter:
    """The routes that list the served models and show one; they go before those of other APIs."""
    router = APIRouter(route_class=_AnthropicRoute, include_in_schema=False)

    @router.get(MODELS_PATH)
    async def list_models(
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)] = PAGE_SIZE,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Response:
        """One page of the names under which requests reach the model."""
        names = [name for model in state.models() for name in model.all_names]
        if after_id is not None:
            names = names[_place(names, "after_id", after_id) + 1 :]
        if before_id is not None:
            names = names[: _place(names, "before_id", before_id)]
        # Backwards, a page is the one right before.
        shown = names[-limit:] if before_id is not None else names[:limit]
        page = ModelPage(
            data=[_info(state.model(name), name) for name in shown],
            has_more=len(shown) < len(names),
            first_id=shown[0] if shown else None,
            last_id=shown[-1] if shown else None,
        )
        return json_response(page)

    @router.get(MODELS_PATH + "/{name:path}")
    async def show_model(name: str) -> Response:
        """One of them."""
        model = state.model(name)
        model.named(name)
        return json_response(_info(model, name))

    return router


def _place(names: list[str], param: str, name: str) -> int:
    if name not in names:
        raise InvalidRequestError(
            f"{param} names {name[:100]!a}, which is not in the list", param=param
        )
    return names.index(name)


def _info(model: ServedModel, name: str) -> ModelInfo:
    context = model.client.info.max_model_len
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=created,
        max_input_tokens=context,
        max_tokens=context,
    )
