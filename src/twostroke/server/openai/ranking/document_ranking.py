"""The documents of a chat, ranked by a model before its prompt is put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from twostroke.core.errors import InvalidRequestError, RequestFailedError, TwostrokeError
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.clients.base import OutputStream
from twostroke.gateway.caller import Caller
from twostroke.observability.tracing.trace import NOT_TRACED
from twostroke.server.calls.call import Rank
from twostroke.server.generation.generation import PROMPTS_AT_ONCE
from twostroke.server.openai.embeddings.pooling_fields import make_pooling_requests
from twostroke.server.openai.ranking.comparison import SideNames, encode_comparison
from twostroke.server.state.served_model import ContextRanker, ServedModel
from twostroke.text.context_material import RankingTask

logger = logging.getLogger(__name__)

NAMES = SideNames("messages", "documents")


def choose_ranking(model: ServedModel, wanted: str | None) -> Rank | None:
    """What ranks documents; ``None`` if BM25 does.

    Args:
        wanted: ``model`` or ``bm25``; by default what the server was started with, or BM25 where
            that fails.

    Raises:
        InvalidRequestError: A model is wanted, and there is none.
    """
    if wanted == "model" and model.ranker is None:
        raise InvalidRequestError(
            "this server ranks documents by BM25, it has no model for that",
            param="context.ranker",
            hint="leave it out, or start the server with --context-ranker",
        )
    if wanted == "bm25" or model.ranker is None:
        return None
    return partial(rank_or_give_up if wanted is None else rank_documents, model.ranker)


async def rank_or_give_up(
    ranker: ContextRanker, task: RankingTask, caller: Caller, request_id: str
) -> tuple[list[float], str] | None:
    """``rank_documents``, or ``None`` with a line in the log where that fails."""
    try:
        return await rank_documents(ranker, task, caller, request_id)
    except TwostrokeError as error:
        logger.warning("request %s: its documents are ranked by BM25: %s", request_id, error)
        return None


async def rank_documents(
    ranker: ContextRanker, task: RankingTask, caller: Caller, request_id: str
) -> tuple[list[float], str]:
    """A score for each text of ``task``, more is better, and the name of the model.

    Texts are cut to what the model takes at once, the question to half of that.

    Args:
        caller: On whose behalf: its limits, share and prefixes.
        request_id: The chat's id.

    Raises:
        RequestFailedError: It took longer than ``ranker.seconds``.
        TwostrokeError: The engine refuses the work, or failed.
    """
    try:
        async with asyncio.timeout(ranker.seconds):
            scores = await _scores(ranker.model, task, caller, f"{request_id}-rank")
            return scores, ranker.model.name
    except TimeoutError as error:
        raise RequestFailedError(
            f"ranking {len(task.texts)} documents took more than {ranker.seconds:g} s",
            hint="send fewer or shorter ones, or raise --context-ranker-timeout",
        ) from error


async def _scores(
    model: ServedModel, task: RankingTask, caller: Caller, request_id: str
) -> list[float]:
    info = model.client.info
    most = min(info.max_model_len, info.num_blocks * info.block_size)
    question = await asyncio.to_thread(_end_of, model, task.question, most // 2)
    comparison = await encode_comparison(model, [question], task.texts, NAMES, max_tokens=most)
    requests = make_pooling_requests(request_id, comparison.prompts, comparison.params)
    return comparison.reader.scores(await _answers(model, caller, requests))


def _end_of(model: ServedModel, question: str, most: int) -> str:
    """The question's last ``most`` tokens: what is asked comes after what it is about."""
    tokenizer = model.tokenizer
    if len(question) <= most:  # no token is less than a character
        return question
    tokens = tokenizer.encode(question, add_special_tokens=False)
    return question if len(tokens) <= most else tokenizer.decode(tokens[-most:])


async def _answers(
    model: ServedModel, caller: Caller, requests: Sequence[GenerationRequest]
) -> list[CollectedAnswer]:
    """The answers in order; whatever happens, nothing is left running."""
    # The chat's trace follows the chat alone: the ranking may run in another engine.
    submissions = replace(caller, trace=NOT_TRACED).submit(model.client, requests)
    streams: list[OutputStream] = []
    try:
        for stream in submissions:
            streams.append(stream)
            if len(streams) % PROMPTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return [await _answer(stream) for stream in streams]
    finally:
        for stream in streams:
            stream.abort()


async def _answer(stream: OutputStream) -> CollectedAnswer:
    answer = CollectedAnswer()
    async for output in stream:
        answer.add(output)
    if answer.error is not None:
        raise answer.error
    if answer.vector is None:
        raise RequestFailedError("the ranking model was stopped")
    return answer
