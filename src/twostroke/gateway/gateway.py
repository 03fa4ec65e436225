"""The gateway: who is let in, and what stands before every route as an ASGI layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.core.errors import TwostrokeError
from twostroke.gateway.caller import SCOPE_KEY, Caller
from twostroke.gateway.keys import KeyRing, given_keys, read_key_file
from twostroke.gateway.options import GatewayOptions

if TYPE_CHECKING:
    from twostroke.gateway.limits import Limits

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
        if options.has_keys:
            in_file = (
                read_key_file(Path(options.api_key_file))
                if options.api_key_file is not None
                else []
            )
            self._keys = KeyRing([*given_keys(options.api_key), *in_file])
        self._private_prefixes = self._keys is not None and not options.share_prefix_cache
        self.open_paths = OPEN_PATHS | ({"/metrics"} if options.metrics_without_key else set())
        self._limits = limits
        if limits is None and options.has_limits:
            # Imported where it is asked for: it costs a tenth of a second.
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
        """Whether there is anything for it to do."""
        return self._keys is not None or self._limits is not None

    async def let_in(self, scope: Scope) -> Caller | None:
        """Who sent this request; ``None`` on routes that are open to all. A POST counts towards its
        limits.

        Raises:
            MissingKeyError, InvalidKeyError, RevokedKeyError: Nobody who may.
            LimitStorageError: The limits cannot be counted.
        """
        if scope["path"] in self.open_paths:
            return None
        tenant = "" if self._keys is None else self._keys.holder_of(_authorization(scope))
        standing = tally = None
        if self._limits is not None and scope.get("method") == "POST":
            standing, tally = await self._limits.arrive(tenant), self._limits.tally(tenant)
        return Caller(tenant, self._private_prefixes, standing, tally)

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
            # There are no such routes; one that is added must not be open by accident.
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            caller = await self._gateway.let_in(scope)
            if caller is not None:
                scope[SCOPE_KEY] = caller
                send = _with_limits(send, caller)
                if caller.standing is not None:
                    caller.standing.check()
        except TwostrokeError as error:
            await self._refuse(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _with_limits(send: Send, caller: Caller) -> Send:
    """Adds the headers of the limits, as they stand when the answer begins."""
    standing = caller.standing
    if standing is None:
        return send

    async def annotated(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *standing.headers()]
        await send(message)

    return annotated


def _authorization(scope: Scope) -> str | None:
    values: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0].decode("utf-8", "surrogateescape") if values else None
