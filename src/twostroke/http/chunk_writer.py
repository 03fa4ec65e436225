"""A piece of a running answer, written at once: past all layers, and without waiting."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

WriteChunk = Callable[[bytes], bool]

# The ASGI extension of our connections: a ``WriteChunk`` that writes a piece of this request's
# answer at once, past all layers, once its head has been sent. ``False``: not now, it must go by
# ``send``, and so must all before the next try.
WRITE_CHUNK = "twostroke.write_chunk"


def chunk_writer(cycle: RequestResponseCycle) -> WriteChunk:
    """What ``WRITE_CHUNK`` promises, for one request; the next on its connection has its own.

    Nothing is written while the transport is paused: a client that takes nothing is noticed as
    with ``send``.
    """
    # The cycle holds the scope, and that the writer: a strong reference would close a circle.
    cycle_ref = weakref.ref(cycle)

    def write(piece: bytes) -> bool:
        cycle = cycle_ref()
        if (
            cycle is None
            or not cycle.chunked_encoding  # or its head has not been sent
            or cycle.response_complete
            or cycle.disconnected
            or cycle.flow.write_paused
            or cycle.transport.is_closing()
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        if piece:  # an empty chunk would be the end of the body
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    return write
