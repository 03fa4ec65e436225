"""A process that renders chat templates within limits: the prototype that was measured.

It takes pickled `(source, variables)` on a connection and answers with a letter and the text. The
kernel holds its limits: memory (``RLIMIT_AS``), and seconds of processor time (a timer whose signal
ends it). The templates run in Jinja's sandbox, nothing else is bounded.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import sys
from datetime import datetime
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOM_BYTES = 256 << 20
BYTES_PER_INPUT_BYTE = 24
MAX_SECONDS = 4.0
DONE, REFUSED, FULL = b"d", b"r", b"f"


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as Jinja's base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _as_it_is(context: Context, value: Any) -> Any:
    """With a context nothing is written when a template is compiled."""
    return value


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@cache
def _template(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        finalize=_as_it_is,
        optimized=False,
    )
    environment.filters["tojson"] = _to_json
    own = {"raise_exception": _raise, "strftime_now": _strftime_now, "range": range}
    environment.globals.update(own)
    return environment.from_string(source)


def _render(request: bytes) -> bytes:
    source, variables = pickle.loads(request)
    try:
        return DONE + _template(source).render(variables).encode("utf-8", "surrogatepass")
    except MemoryError:
        return FULL
    except Exception as error:
        return REFUSED + str(error).encode("utf-8", "surrogatepass")[:1000]


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    own_bytes = pages * resource.getpagesize()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        room = own_bytes + ROOM_BYTES + BYTES_PER_INPUT_BYTE * len(request)
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        answer = _render(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(answer)


if __name__ == "__main__":
    main()
