"""``POST /v1/score`` and ``POST /v1/rerank``, and the same under the paths of other servers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.ranking.answer import (
    Ranking,
    RankingFormat,
    ScoreFormat,
    ScoreList,
    ScoreReader,
)
from twostroke.server.openai.ranking.comparison import SideNames, encode_comparison
from twostroke.server.openai.ranking.request import RerankRequest, ScoreRequest
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState

SCORE_NAMES = SideNames("text_1", "text_2")
RERANK_NAMES = SideNames("query", "documents")


def ranking_router(state: ServerState) -> APIRouter:
    """The routes of scores and rankings."""
    router = APIRouter(route_class=StrictRoute, tags=["ranking"])
    scored = answer_responses(ScoreList, "The scores.", has_body=True) | ERROR_RESPONSES
    ranked = answer_responses(Ranking, "The ranking.", has_body=True) | ERROR_RESPONSES

    @router.post("/score", response_class=Response, responses=scored, include_in_schema=False)
    @router.post("/v1/score", response_class=Response, responses=scored)
    async def create_scores(body: ScoreRequest, request: Request) -> Response:
        """How well texts fit together: a ranking model's score, or the cosine of embeddings."""
        model = state.model_for_new_work(body.model)
        model.check_name(body.model)
        first, second = body.sides()
        generation, reader = await _compare(model, body, request, first, second)
        created = int(time.time())
        answer = ScoreFormat(generation.request_id, model.name, created, reader)
        return await generation.respond(answer, request)

    @router.post("/rerank", response_class=Response, responses=ranked, include_in_schema=False)
    @router.post("/v2/rerank", response_class=Response, responses=ranked, include_in_schema=False)
    @router.post("/v1/rerank", response_class=Response, responses=ranked)
    async def create_ranking(body: RerankRequest, request: Request) -> Response:
        """Documents by their relevance to a query, the most relevant first."""
        model = state.model_for_new_work(body.model)
        model.check_name(body.model)
        texts = body.texts()
        generation, reader = await _compare(model, body, request, [body.query], texts)
        shown = None if body.return_documents is False else texts
        answer = RankingFormat(
            generation.request_id, model.name, reader, shown, top_n=body.top_n or 0
        )
        return await generation.respond(answer, request)

    return router


async def _compare(
    model: ServedModel,
    body: RerankRequest | ScoreRequest,
    request: Request,
    first: Sequence[str],
    second: Sequence[str],
) -> tuple[Generation, ScoreReader]:
    """The engine's work for texts of two sides, and how to read scores from it.

    Raises:
        InvalidRequestError: The model gives neither scores nor embeddings.
    """
    body.check_shared_fields()
    ranks = isinstance(body, RerankRequest)
    prompts, params, reader = await encode_comparison(
        model,
        first,
        second,
        RERANK_NAMES if ranks else SCORE_NAMES,
        max_tokens=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens is not False,
        instruction=body.checked_instruction(),
    )
    request_id = name_request(request.scope, "rerank" if ranks else "score")
    generation = Generation(
        model,
        caller_of(request.scope),
        request_id,
        body.pooling_requests(request_id, prompts, params),
        streamed=False,
        ignored=body.dropped_fields(),
        gradual=True,
    )
    await generation.submit_rest()
    return generation, reader
