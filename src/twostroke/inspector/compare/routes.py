"""``POST /v1/inspect/compare``: the same requests under other settings, simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import isfinite

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import AdminKeyNeededError, InvalidRequestError, QueueFullError
from twostroke.gateway.caller import caller_of
from twostroke.inspector.compare.collect import collect, make_job
from twostroke.inspector.compare.messages import ComparisonAnswer, Question
from twostroke.inspector.compare.process import NobodyWaitsError, run_replay
from twostroke.inspector.request_body import read_body
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.source import StepSource

MAX_TOKENS = 2**20
MAX_BODY = 4096
MAX_WAITING = 2  # one runs; a page that asks anew waits until its first question is dropped
LEFT = 499  # nginx's number for a client that has left
_QUESTIONS = msgspec.json.Decoder(Question)


def compare_router(find_source: Callable[[], StepSource]) -> APIRouter:
    """The comparison, one at a time.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
    """
    router = APIRouter(include_in_schema=False)
    turns = _Turns()

    @router.post("/v1/inspect/compare", response_class=Response)
    async def compare(request: Request) -> Response:
        """Both sides are simulated with one model of the step times, fitted to recorded steps."""
        if not caller_of(request.scope).admin:
            raise AdminKeyNeededError(
                "a comparison replays the requests of all keys: it needs an admin key"
            )
        question = _read_question(await read_body(request, MAX_BODY))
        source = find_source()
        try:
            async with turns.turn():
                answer = await _answer(source, question, request.is_disconnected)
        except NobodyWaitsError:
            return Response(status_code=LEFT)
        body = await asyncio.to_thread(msgspec.json.encode, answer)
        return Response(body, headers=HEADERS, media_type="application/json")

    return router


class _Turns:
    """One comparison at a time, and few that wait for theirs."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._taken = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises ``QueueFullError`` where enough wait."""
        if self._taken > MAX_WAITING:
            raise QueueFullError("other comparisons run and wait", hint="try again in a while")
        self._taken += 1
        try:
            async with self._lock:
                yield
        finally:
            self._taken -= 1


async def _answer(
    source: StepSource, question: Question, is_gone: Callable[[], Awaitable[bool]]
) -> ComparisonAnswer:
    if await is_gone():  # while it waited for its turn
        raise NobodyWaitsError
    collected = await collect(source, question.begin, question.end)
    job, left_out, notes = make_job(source, question, collected)
    replay = await run_replay(job, is_gone)
    return ComparisonAnswer(
        question,
        job.requests,
        replay.fit,
        replay.recorded,
        replay.other,
        sum(request.in_range and request.finish is None for request in job.requests),
        left_out,
        notes,
    )


def _read_question(body: bytes) -> Question:
    """Raises ``InvalidRequestError`` with the field's name."""
    try:
        question = _QUESTIONS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"the body is no question: {error}",
            param=_field(str(error)),
            hint='such as {"begin": 12.5, "end": 20, "against": "static"}',
        ) from error
    for name in ("begin", "end"):
        if not isfinite(getattr(question, name)):
            raise InvalidRequestError(f"{name} must be finite", param=name)
    if question.end <= question.begin:
        raise InvalidRequestError("end must be after begin", param="end")
    needs_tokens = question.against in ("chunk", "budget")
    if needs_tokens and not (question.tokens and 1 <= question.tokens <= MAX_TOKENS):
        raise InvalidRequestError(
            f"against {question.against} needs tokens from 1 to {MAX_TOKENS:,}, got"
            f" {question.tokens}",
            param="tokens",
        )
    return question


def _field(message: str) -> str | None:
    """The field that msgspec names: its path, or an unknown one."""
    for opening in ("$.", "unknown field `", "required field `"):
        _, found, rest = message.partition(opening)
        if found:
            return rest.split("`")[0]
    return None
