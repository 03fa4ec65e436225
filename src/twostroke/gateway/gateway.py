"""The gateway: an ASGI layer before every route that checks keys and counts requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.core.errors import TwostrokeError
from twostroke.gateway.caller import BACKGROUND_KEY, SCOPE_KEY, Background, Caller
from twostroke.gateway.keys import KeyRing, given_keys, read_key_file
from twostroke.gateway.options import GatewayOptions
from twostroke.gateway.usage import UsageBook
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import trace_of

if TYPE_CHECKING:
    from twostroke.gateway.limits import Limits, RateLimitSnapshot

OPEN_PATHS = frozenset({"/health"})


class Gateway:
    """Keys and limits of one server.

    Args:
        limits: Instead of those that ``options`` ask for.

    Attributes:
        open_paths: Routes that ask for no key.

    Raises:
        ConfigError: The key file is unusable.
    """

    def __init__(self, options: GatewayOptions, *, limits: Limits | None = None) -> None:
        self._keys: KeyRing | None = None
        self._usage: UsageBook | None = None
        self._admins: frozenset[str] = frozenset()
        if options.has_keys:
            records = given_keys(options.api_key)
            if options.api_key_file is not None:
                records += read_key_file(Path(options.api_key_file))
            self._keys = KeyRing(records)
            self._usage = UsageBook(self._keys.names)
            self._admins = frozenset(filter(self._keys.is_admin, self._keys.names))
        self._private_prefixes = self._keys is not None and not options.share_prefix_cache
        self.open_paths = OPEN_PATHS | ({"/metrics"} if options.metrics_without_key else set())
        self._limits = limits
        if limits is None and options.has_limits:
            # Imported here, since it costs a tenth of a second.
            from twostroke.gateway.limits import Limits

            self._limits = Limits(options)

    @property
    def asks_for_keys(self) -> bool:
        return self._keys is not None

    @property
    def has_limits(self) -> bool:
        return self._limits is not None

    @property
    def needed(self) -> bool:
        """Whether there are keys or limits to check."""
        return self._keys is not None or self._limits is not None

    def open(self, paths: Iterable[str]) -> None:
        """Ask for no key on these paths: what they answer is the same for everybody."""
        self.open_paths |= frozenset(paths)

    async def identify(self, scope: Scope) -> Caller | None:
        """The sender of a request, by its key; ``None`` on routes that are open to all.

        A POST counts towards the limits of its key.

        Raises:
            MissingKeyError, InvalidKeyError, RevokedKeyError: It has no valid key.
            LimitStorageError: The limits cannot be counted.
        """
        if scope["path"] in self.open_paths:
            return None
        tenant, admin, trace = "", True, trace_of(scope)
        if self._keys is not None:
            background: Background | None = scope.get(BACKGROUND_KEY)
            tenant = (
                self._keys.holder_of(_authorization(scope))
                if background is None
                else (self._keys.check_name(background.tenant))
            )
            admin = tenant in self._admins
            trace.event(names.AUTHENTICATED, {names.TENANT: tenant})
        limits = tally = None
        if self._limits is not None and scope.get("method") == "POST":
            limits = await self._limits.count_request(tenant)
            tally = self._limits.tally(tenant)
        return Caller(tenant, self._private_prefixes, limits, tally, self._usage, admin, trace)

    async def close(self) -> None:
        """Write what has been counted; the server takes no more requests."""
        if self._limits is not None:
            await self._limits.close()


class GatewayMiddleware:
    """Stands before everything, the documentation and unknown paths included, and reads no body.

    Args:
        refuse: Makes the response for an error.
    """

    def __init__(
        self, app: ASGIApp, gateway: Gateway, refuse: Callable[[Exception], ASGIApp]
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There are no such routes; one that is added must not bypass the keys by accident.
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            caller = await self._gateway.identify(scope)
            if caller is not None:
                scope[SCOPE_KEY] = caller
                if caller.limits is not None:
                    send = _send_with_limits(send, caller.limits)
                    caller.limits.check()
                    caller.trace.event(names.LIMITED)
        except TwostrokeError as error:
            await self._refuse(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _send_with_limits(send: Send, limits: RateLimitSnapshot) -> Send:
    """Adds the headers of the limits, as they are when the answer begins."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *limits.headers()]
        await send(message)

    return send_with_headers


def _authorization(scope: Scope) -> str | None:
    """The header ``Authorization``, or what ``X-Api-Key`` says in its stead."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for wanted, scheme in ((b"authorization", ""), (b"x-api-key", "Bearer ")):
        for name, value in headers:
            if name == wanted:
                return scheme + value.decode("utf-8", "surrogateescape")
    return None
