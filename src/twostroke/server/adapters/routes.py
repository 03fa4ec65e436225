"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as in vLLM; for admin keys."""

from __future__ import annotations

from fastapi import APIRouter, Request
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from twostroke.core.errors import AdminKeyNeededError, InvalidRequestError
from twostroke.engine.adapters.orders import AdapterOrder, LoadAdapter, UnloadAdapter
from twostroke.gateway.caller import caller_of
from twostroke.server.adapters.request import LoadAdapterRequest, UnloadAdapterRequest
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


class AdapterAnswer(Struct, kw_only=True):
    __doc__ = (
        "What was done with an adapter; ``rank`` is the highest of its modules. Where several"
        " engines serve the model, ``engines`` says of each whether it has done it: one that is"
        " gone does it once it is back."
    )

    object: str = "lora_adapter"
    id: str
    parent: str
    rank: int
    bytes: int
    status: str
    engines: dict[str, str] | UnsetType = UNSET


def adapters_router(state: ServerState) -> APIRouter:
    """The routes that change which adapters a server has."""
    router = APIRouter(route_class=StrictRoute, tags=["adapters"])

    @router.post(
        "/v1/load_lora_adapter",
        response_class=Response,
        responses=answer_responses(AdapterAnswer, "It is loaded.", has_body=True) | ERROR_RESPONSES,
    )
    async def load_lora_adapter(body: LoadAdapterRequest, request: Request) -> Response:
        """Read a LoRA adapter from a folder of the server; then it is a model's name."""
        model = state.model_for_new_work(body.base_model_name)
        _only_for_admins(request)
        model.check_name(body.base_model_name)
        if body.lora_name in _taken(model):
            raise InvalidRequestError(
                f"a model or another model's adapter is called {body.lora_name!r}",
                param="lora_name",
            )
        order = LoadAdapter(body.lora_name, body.lora_path)
        return await _manage(model, order, "loaded", body.dropped_fields())

    @router.post(
        "/v1/unload_lora_adapter",
        response_class=Response,
        responses=answer_responses(AdapterAnswer, "It is gone.", has_body=True) | ERROR_RESPONSES,
    )
    async def unload_lora_adapter(body: UnloadAdapterRequest, request: Request) -> Response:
        """Forget a LoRA adapter, once no request uses it."""
        _only_for_admins(request)
        order = UnloadAdapter(body.lora_name)
        model = state.model(body.lora_name)
        return await _manage(model, order, "unloaded", body.dropped_fields())

    return router


def _taken(model: ServedModel) -> set[str]:
    """Names that an adapter of the model cannot have; its own adapters' are refused by it."""
    return {*model.names, *(name for other in model.beside for name in other.all_names)}


async def _manage(
    model: ServedModel, order: AdapterOrder, status: str, dropped: list[str]
) -> Response:
    report = await model.client.manage_adapters(order)
    own = report.adapter
    answer = AdapterAnswer(
        id=own.name,
        parent=model.name,
        rank=own.rank,
        bytes=own.nbytes,
        status=status,
        engines=report.engines or UNSET,
    )
    return json_response(answer, ignored_header(dropped))


def _only_for_admins(request: Request) -> None:
    if not caller_of(request.scope).admin:
        raise AdminKeyNeededError(
            "adapters are for all tenants, so this needs an admin key",
            hint="make one with twostroke key NAME --admin",
        )
