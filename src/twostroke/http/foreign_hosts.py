"""Refuses requests under another server's name, and those of other sites' pages.

A page's own name can be made to lead to 127.0.0.1 (DNS rebinding): its scripts may then read what
a server there answers, as if it were their own. Their requests still carry that name as ``Host``.
And a page may send without reading, which CORS does not prevent, but its ``Origin`` shows; where it
only fetches, as an image or a script, ``Sec-Fetch-Site`` does.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from twostroke.http.errors import ForeignHostError, ForeignOriginError, Refuse
from twostroke.http.request_id import request_id

ANY = "*"
# Nothing else is read of a host: parsers of URLs drop tabs and line ends, or change letters.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(.+)", re.ASCII)
# What lets a page of another site show the answer without reading it: a link that is followed.
_LINK = {b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNames:
    """Names of this server; see the fields of ``ServerOptions`` of the same names."""

    host: str
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    def need_check(self) -> bool:
        """Whether only some names are accepted."""
        if self.allowed_hosts:
            return ANY not in self.allowed_hosts
        return is_this_machine(_normal(self.host))


class HostCheck:
    """Stands before the application, keys included; without anything to check it is not needed.

    Names of this machine and addresses are always accepted as ``Host``: only a name can be
    rebound; but 0.0.0.0 is no server's address. An ``Origin`` is accepted if its host is this
    machine's or a name that is accepted, or if it is one of ``--allowed-origins``. Without an
    ``Origin`` ``Sec-Fetch-Site`` must not say that another site asks, unless a link was followed.
    What sends none of the three is no browser.
    """

    def __init__(self, app: ASGIApp, own: OwnNames, refuse: Refuse) -> None:
        self._app = app
        self._refuse = refuse
        names = (*own.allowed_hosts, own.host)
        self._names = frozenset(filter(_can_be_addressed, map(_normal, names)))
        self._origins = frozenset(own.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            headers: dict[bytes, bytes] = {}
            for name, value in scope["headers"]:
                headers[name] = value
                if name == b"host":
                    self._check_host(_text(value))
                elif name == b"origin":
                    self._check_origin(_text(value))
            if b"origin" not in headers:
                self._check_site(scope["method"], headers)
        except (ForeignHostError, ForeignOriginError) as error:
            response = self._refuse(error)
            response.headers["x-request-id"] = request_id(scope)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, header: str) -> None:
        host = host_in(header)
        if host is None or not (
            host in self._names
            or is_this_machine(host)
            or (_address(host) is not None and _can_be_addressed(host))
        ):
            raise ForeignHostError(
                f"this server is not called {_shown(header)}",
                hint="address it as localhost, or start it with --allowed-hosts NAME",
            )

    def _check_origin(self, header: str) -> None:
        if ANY in self._origins or header in self._origins:
            return
        origin = _ORIGIN.fullmatch(header)
        host = host_in(origin[1]) if origin else None
        if host is None or not (host in self._names or is_this_machine(host)):
            raise ForeignOriginError(
                f"pages of {_shown(header)} may not call this server",
                hint="start it with --allowed-origins ORIGIN to let them",
            )

    def _check_site(self, method: str, headers: dict[bytes, bytes]) -> None:
        """What a browser sends without an ``Origin``: links, images, scripts, frames.

        Another port of this machine is the same site, but so is another name of a domain.
        """
        site = headers.get(b"sec-fetch-site", b"none")
        own = site in (b"none", b"same-origin") or (
            site == b"same-site" and is_this_machine(host_in(_text(headers.get(b"host"))) or "")
        )
        follows = method in ("GET", "HEAD") and _LINK.items() <= headers.items()
        if not (own or follows or ANY in self._origins):
            raise ForeignOriginError(
                f"pages of other sites may not call this server: sec-fetch-site is"
                f" {_shown(_text(site))}",
                hint="start it with --allowed-origins ORIGIN, and let the page use fetch",
            )


def host_in(text: str) -> str | None:
    """The host of ``HOST`` or ``HOST:PORT``, in lower case; ``None`` if it is neither."""
    match = _HOST.fullmatch(text)
    return _normal(match[1] or match[2]) if match else None


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


def _can_be_addressed(host: str) -> bool:
    """Not 0.0.0.0 or ::, at which some systems reach loopback, past what browsers guard."""
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address is None or not address.is_unspecified


def _text(header: bytes | None) -> str:
    return "" if header is None else header.decode("latin-1")


def _normal(host: str) -> str:
    return host.lower().removesuffix(".")


def _shown(header: str) -> str:
    return repr(header if len(header) <= 100 else header[:100] + "...")
