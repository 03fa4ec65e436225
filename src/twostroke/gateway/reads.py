"""How much the answers to GET may cost others: one layer before all routes that only read.

Routes need not know of it. What a key asks for beyond its share waits, behind its own calls alone.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import SCOPE_KEY, Caller
from twostroke.gateway.turns import Turn, Turns

PASSING = frozenset({"/health"})
# Answers of one key that are under way, until its client has taken them; and as many downloads.
OF_ONE_KEY = 16
# Whole files, as slow as their clients: they have places of their own, and leave the others free.
DOWNLOADS = ("/content", "/results")
# Of what has to be computed: one of a key, two in all, and as long as it took the key rests.
COMPUTED = ("/v1/inspect", "/v1/cache", "/metrics")
COMPUTED_AT_ONCE = 2
# A client that takes nothing holds up the next piece, and with it its own next answer.
PIECE_BYTES = 2**18
_STREAM = b"text/event-stream"


class ReadLimits:
    """Stands behind the keys; what needs none shares a place of its own, but ``/health`` passes.

    An event stream counts until it begins: how many of them there are is bounded by ``Feeds``.

    Args:
        refuse: Makes the response for an error.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[Exception], ASGIApp]) -> None:
        self._app = app
        self._refuse = refuse
        self._answers = Turns(None, OF_ONE_KEY)
        self._downloads = Turns(None, OF_ONE_KEY)
        self._computed = Turns(COMPUTED_AT_ONCE, 1, rests=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not reads or scope["path"] in PASSING:
            await self._app(scope, receive, send)
            return
        caller: Caller | None = scope.get(SCOPE_KEY)
        key = "" if caller is None else caller.tenant
        turns: list[Turn] = []
        try:
            is_download = scope["path"].rstrip().endswith(DOWNLOADS)  # routes allow a line's end
            turns.append(await (self._downloads if is_download else self._answers).take(key))
            if scope["path"].startswith(COMPUTED):
                turns.append(await self._computed.take(key))
        except QueueFullError as error:
            _end(turns)
            await self._refuse(error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, _ending(turns, send))
        finally:
            _end(turns)


def _ending(turns: list[Turn], send: Send) -> Send:
    """Sends in pieces, and ends the turns that are over when an answer begins."""

    async def send_in_pieces(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            is_stream = headers.get(b"content-type", b"").startswith(_STREAM)
            _end(turns if is_stream else turns[1:])
        body = message.get("body", b"")
        for start in range(0, len(body) - PIECE_BYTES, PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await send({"type": message["type"], "body": piece, "more_body": True})
            message = {**message, "body": body[start + PIECE_BYTES :]}
        await send(message)

    return send_in_pieces


def _end(turns: list[Turn]) -> None:
    for turn in turns:
        turn.end()
