"""Why a request is refused before any key is looked at, and how its client is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twostroke.core.errors import InvalidRequestError, TwostrokeError


class BodyTooLargeError(InvalidRequestError):
    """A request's body exceeds ``--max-body-size``."""


class BodyMemoryFullError(TwostrokeError):
    """The large bodies that are being read leave no room for another."""


class MalformedRequestError(InvalidRequestError):
    """The bytes of a request are not valid HTTP."""


class HeadTooLargeError(InvalidRequestError):
    """The request's line and headers are larger than any client has reason to send."""


class RequestTimeoutError(InvalidRequestError):
    """The rest of a request did not come."""


class ForeignHostError(InvalidRequestError):
    """A request addresses the server by a name that is not its own."""


class ForeignOriginError(InvalidRequestError):
    """A request comes from a page of another site."""


class Refusal(Protocol):
    """The answer to a request that is refused: an ASGI application."""

    @property
    def headers(self) -> MutableHeaders: ...

    def shaped(self, scope: Scope) -> Response:
        """The response in the shape that the request of ``scope`` expects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


# The answer for an error; the server's table of errors is behind it.
Refuse = Callable[[Exception], Refusal]
