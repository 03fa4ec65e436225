"""Refuses requests under another server's name, and those of other sites' pages.

A page's own name can be made to lead to 127.0.0.1 (DNS rebinding): its scripts may then read what
a server there answers, as if it were their own. Their requests still carry that name as ``Host``.
And a page may send without reading, which CORS does not prevent, but its ``Origin`` shows.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from twostroke.server.http.errors import ForeignHostError, ForeignOriginError, error_response
from twostroke.server.http.request_id import request_id
from twostroke.server.options import ServerOptions

ANY = "*"


class HostCheck:
    """Stands before the application, keys included; without anything to check it is not needed.

    Names of this machine and addresses are always accepted as ``Host``: only a name can be
    rebound. An ``Origin`` is accepted if its host is this machine's or a name that is accepted, or
    if it is one of ``--allowed-origins``. What sends neither header is no browser.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._names = frozenset(_normal(name) for name in (*options.allowed_hosts, options.host))
        self._origins = frozenset(options.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            for name, value in scope["headers"]:
                if name == b"host":
                    self._check_host(value.decode("latin-1"))
                elif name == b"origin":
                    self._check_origin(value.decode("latin-1"))
        except (ForeignHostError, ForeignOriginError) as error:
            response = error_response(error)
            response.headers["x-request-id"] = request_id(scope)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, header: str) -> None:
        host = host_in(f"//{header}")
        if host is None or not (
            host in self._names or is_this_machine(host) or _address(host) is not None
        ):
            raise ForeignHostError(
                f"this server is not called {_shown(header)}",
                hint="address it as localhost, or start it with --allowed-hosts NAME",
            )

    def _check_origin(self, header: str) -> None:
        if ANY in self._origins or header in self._origins:
            return
        host = host_in(header)
        if host is None or not (host in self._names or is_this_machine(host)):
            raise ForeignOriginError(
                f"pages of {_shown(header)} may not call this server",
                hint="start it with --allowed-origins ORIGIN to let them",
            )


def needs_host_check(options: ServerOptions) -> bool:
    """Whether a server with these options accepts only some names."""
    if options.allowed_hosts:
        return ANY not in options.allowed_hosts
    return is_this_machine(_normal(options.host))


def host_in(url: str) -> str | None:
    """The host of an origin or of ``//HOST:PORT``, in lower case; ``None`` if there is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return _normal(parts.hostname) if plain and parts.hostname else None


def is_this_machine(host: str) -> bool:
    """Whether a host in lower case is loopback, which no resolver can lead elsewhere."""
    address = _address(host)
    return (
        host == "localhost"
        or host.endswith(".localhost")
        or (address is not None and address.is_loopback)
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _normal(host: str) -> str:
    return host.lower().removesuffix(".")


def _shown(header: str) -> str:
    return repr(header if len(header) <= 100 else header[:100] + "...")
