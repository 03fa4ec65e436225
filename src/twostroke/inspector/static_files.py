"""``/inspect/``: the page, from files of this package alone."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from twostroke.http.page_headers import page_headers
from twostroke.inspector.sent_text import without_comments

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
# No script stands inline, and nothing comes from another host.
HEADERS = {
    **page_headers(styles="'self'", images="'self' data: blob:"),
    "cross-origin-opener-policy": "same-origin",
    # Asked for again each time, and answered with a 304: a new version is seen at once.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass
class StaticFile:
    """One file of the page, read when it is first asked for.

    Its own scripts and styles are sent without comments; libraries stay as published.
    """

    path: Path

    @cached_property
    def content(self) -> bytes:
        if self.path.suffix not in (".css", ".js") or self.path.parent.name == "vendor":
            return self.path.read_bytes()
        return without_comments(self.path.read_text(encoding="utf-8")).encode()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, compresslevel=9, mtime=0)

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:20]}"'

    def response(self, request: Request) -> Response:
        headers = {**HEADERS, "etag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = self.compressed, "gzip"
        return Response(body, headers=headers, media_type=MEDIA_TYPES[self.path.suffix])


def known_files() -> dict[str, StaticFile]:
    """The files that are served, by their path below ``/inspect/``."""
    return {
        path.relative_to(FOLDER).as_posix(): StaticFile(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.is_file() and path.suffix in MEDIA_TYPES
    }


def page_paths() -> frozenset[str]:
    """The paths of the page itself. They hold no data, so they need no key."""
    return frozenset({"/inspect", "/inspect/", *(f"/inspect/{name}" for name in known_files())})


def page_routes() -> list[Route]:
    """``GET /inspect/`` and what it loads; plain routes, since no page needs its fields read."""
    files = known_files()
    paths = {"/inspect/": INDEX} | {f"/inspect/{name}": name for name in files}
    return [
        Route("/inspect", _without_slash, methods=["GET"]),
        *(Route(path, files[name].response, methods=["GET"]) for path, name in paths.items()),
    ]


def _without_slash(_: Request) -> Response:
    """Redirect to the page, whose files are named relative to it."""
    return RedirectResponse("inspect/", status_code=307)
