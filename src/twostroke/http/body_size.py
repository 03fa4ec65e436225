"""How large a request's body may be, and how large all that are being read may be together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.core.errors import TwostrokeError
from twostroke.core.freed_memory import return_freed_memory
from twostroke.http.errors import (
    BodyMemoryFullError,
    BodyTooLargeError,
    MalformedRequestError,
    Refuse,
)

# Bodies up to here are always read: large ones cannot keep them out. They are parsed at once.
SMALL_BODY = 2**16
# How many of the largest allowed bodies fit into the memory for bodies.
BODIES_IN_MEMORY = 16
# After this many bytes of large bodies free memory is given back, once they have been freed.
TRIM_BYTES, TRIM_SECONDS = 8 * 2**20, 1.0
_MAX_LENGTH_DIGITS = 20
_SCOPE_KEY = "twostroke.body"


class BodyLimit(NamedTuple):
    """How large a body may be, and the flag that says so."""

    flag: str
    num_bytes: int


class BodyMemory:
    """The large bodies of one server, from their first byte until they are parsed.

    The bodies of a tenant may take as much as remains free after them, so that there is always room
    for another tenant's; where there are no keys, all of it.

    Attributes:
        limit: Bytes that they may take together.
        num_bytes: What those of each tenant take now.
        max_values: How many values one body may hold.
        parsing: Held while a large body is parsed: one at a time, the event loop in between.
        rested_at: When the next may be parsed, on the event loop's clock.
    """

    def __init__(self, limit: int, max_values: Callable[[], int]) -> None:
        self.limit = limit
        self.num_bytes: Counter[str] = Counter()
        self.max_values = max_values
        self.parsing = asyncio.Semaphore(1)
        self.rested_at = 0.0
        self._num_released = 0
        self._trimming: asyncio.TimerHandle | None = None

    def take(self, tenant: str, num_bytes: int) -> None:
        """Count bytes that a tenant's bodies hold from now on."""
        self.num_bytes[tenant] += num_bytes

    def give_back(self, tenant: str, num_bytes: int) -> None:
        """They are held no longer."""
        self.num_bytes[tenant] -= num_bytes
        if not self.num_bytes[tenant]:
            del self.num_bytes[tenant]

    def count_freed(self, num_bytes: int) -> None:
        """A body is through; what many of them leave in the heaps goes back to the system."""
        self._num_released += num_bytes
        if self._num_released >= TRIM_BYTES and self._trimming is None:
            loop = asyncio.get_running_loop()
            self._trimming = loop.call_later(TRIM_SECONDS, self._trim, loop)

    def _trim(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_released, self._trimming = 0, None
        loop.run_in_executor(None, return_freed_memory)

    def has_room(self, tenant: str, num_bytes: int) -> bool:
        """Whether the bodies of a tenant may take this many bytes more."""
        free_then = self.limit - self.num_bytes.total() - num_bytes
        return free_then >= (self.num_bytes[tenant] + num_bytes if tenant else 0)


class HeldBody:
    """The body of one request, as far as it has come.

    Args:
        announced: Its length, if that is known. Of a body that is refused on its way, too, the
            rest goes through the server's memory.
        is_held: Whether it is kept until it has been parsed, not used up as it comes.
    """

    def __init__(
        self, memory: BodyMemory, tenant: str, announced: int = 0, *, is_held: bool = True
    ) -> None:
        self.memory = memory
        self._num_passing = announced
        self._is_held = is_held
        self._tenant = tenant
        self.num_received = 0
        self._num_counted = 0

    def add(self, num_bytes: int) -> None:
        """Count bytes that have come.

        Raises:
            BodyMemoryFullError: There is no room for them; what had come is released.
        """
        self.num_received += num_bytes
        if self.num_received <= SMALL_BODY or not self._is_held:
            return
        num_more = self.num_received - self._num_counted
        if not self.memory.has_room(self._tenant, num_more):
            self.release()
            whose = "this key's large bodies" if self._tenant else "large bodies"
            raise BodyMemoryFullError(
                f"{whose} that are being read take as much memory as they may; all together may"
                f" take {self.memory.limit} bytes",
                hint="try again, or start the server with a larger --max-body-size",
            )
        self.memory.take(self._tenant, num_more)
        self._num_counted += num_more

    def release(self) -> None:
        """It has been parsed, or will not be; harmless when repeated."""
        num_bytes, self._num_counted = self._num_counted, 0
        if num_bytes:
            self.memory.give_back(self._tenant, num_bytes)
        num_passed, self._num_passing = max(num_bytes, self._num_passing), 0
        if num_passed > SMALL_BODY:
            self.memory.count_freed(num_passed)


def held_body(scope: Scope) -> HeldBody:
    """The body of the request of this ASGI scope."""
    return cast(HeldBody, scope[_SCOPE_KEY])


class BodySizeLimit:
    """Refuses bodies above ``limit`` bytes, announced or not, before they are held in memory.

    Plain ASGI: Starlette's ``BaseHTTPMiddleware`` would hide that a client has left.

    Args:
        max_values: See ``BodyMemory``.
        tenant_of: The name of the key of a request; empty where there are no keys.
        refuse: Makes the answer for an error.
        files: The flag and the bytes that bound the bodies of some paths, which are stored as they
            come and are not held.
        file_paths: These paths.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        max_values: Callable[[], int],
        tenant_of: Callable[[Scope], str],
        refuse: Refuse,
        files: BodyLimit | None = None,
        file_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._limit = BodyLimit("--max-body-size", limit)
        self._files = files or self._limit
        self._file_paths = frozenset(file_paths)
        self._tenant_of = tenant_of
        self._refuse = refuse
        self._memory = BodyMemory(limit * BODIES_IN_MEMORY, max_values)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next(
            (value for name, value in scope["headers"] if name == b"content-length"), b"0"
        )
        is_file = scope["path"] in self._file_paths
        limit = self._files if is_file else self._limit
        if (error := _check_announced(announced, limit)) is not None:
            await self._refuse(error)(scope, receive, send)
            return
        tenant, length = self._tenant_of(scope), int(announced)
        body = HeldBody(self._memory, tenant, length, is_held=not is_file)
        scope[_SCOPE_KEY] = body

        async def counted_receive() -> Message:
            message = await receive()
            try:
                if num_bytes := len(message.get("body", b"")):
                    _count(body, num_bytes, limit)
            except TwostrokeError as error:
                # FastAPI turns any other exception of a body that it reads into a 400.
                raise HTTPException(400) from error
            return message

        try:
            await self._app(scope, counted_receive, send)
        finally:
            body.release()


def _check_announced(length: bytes, limit: BodyLimit) -> TwostrokeError | None:
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        return MalformedRequestError("Content-Length is no number of bytes")
    return _too_large(limit) if int(length) > limit.num_bytes else None


def _count(body: HeldBody, num_bytes: int, limit: BodyLimit) -> None:
    if body.num_received + num_bytes > limit.num_bytes:
        body.release()
        raise _too_large(limit)
    body.add(num_bytes)


def _too_large(limit: BodyLimit) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body exceeds {limit.num_bytes} bytes",
        hint=f"send less, or start the server with a larger {limit.flag}",
    )
