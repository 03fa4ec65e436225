"""The body of a batch of messages, cut into its requests as it comes.

``{"requests": [{...}, {...}]}`` may be far larger than what is held in memory. So each object of
the array is taken out as soon as it ends, and what is left, with a 0 in the place of each, is read
as JSON at the end: whatever is wrong between the objects is found there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_json import parse_body

REQUESTS = "requests"
_OUTSIDE, _INSIDE = re.compile(rb'["{}\[\]]'), re.compile(rb'["\\]')
# What is open around an object of the array: the body's own object, and the array.
_AROUND = bytearray(b"{[")
# What may stand between the objects, besides a comma and a space for each.
MAX_REST = 2**16
_REST_FOR_EACH = 4


class RequestArray:
    """Cuts one body.

    Args:
        max_bytes: Limit of one object.
        max_requests: How many objects there may be.

    Attributes:
        num_requests: How many have ended.
    """

    def __init__(self, max_bytes: int, max_requests: int) -> None:
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self.num_requests = 0
        self._rest = bytearray()
        self._unread = bytearray()  # from the beginning of an object on, if one has begun
        self._place = 0  # up to where it has been looked at
        self._open = bytearray()
        self._in_text = self._in_object = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The objects that end in a piece.

        Raises:
            InvalidRequestError: One is too large, or there are too many.
        """
        self._unread += piece
        while self._step():
            if self._in_object and len(self._open) == len(_AROUND):
                yield self._take_object()
        if self._in_object:
            self._check_size(len(self._unread))
        else:
            self._keep(self._place)

    def end(self) -> dict[str, object]:
        """The fields of the body beside its requests.

        Raises:
            InvalidRequestError: It is not what it should be.
            ValueError: It is no JSON.
        """
        if self._in_object or self._in_text:
            raise ValueError("the body ends within a request")
        fields = parse_body(bytes(self._rest), 2 * self._max_requests + MAX_REST)
        if not isinstance(fields, dict):
            raise InvalidRequestError("the body must be a JSON object")
        if REQUESTS not in fields:
            raise InvalidRequestError(f"{REQUESTS} is missing", param=REQUESTS)
        requests = fields.pop(REQUESTS)
        if not isinstance(requests, list):
            raise InvalidRequestError(f"{REQUESTS} must be a list", param=REQUESTS)
        if not requests:
            raise InvalidRequestError(f"{REQUESTS} is empty", param=REQUESTS)
        if len(requests) != self.num_requests or any(map(_is_other, requests)):
            raise InvalidRequestError(
                f"{REQUESTS} must be a list of objects, and the only one", param=REQUESTS
            )
        return fields

    def _step(self) -> bool:
        """Look at the next byte that means something; returns whether there was one."""
        found = (_INSIDE if self._in_text else _OUTSIDE).search(self._unread, self._place)
        if found is None:
            self._place = len(self._unread)
            return False
        place, mark = found.start(), found[0]
        if mark == b"\\":
            if place + 1 == len(self._unread):  # what it escapes lies in the next piece
                self._place = place
                return False
            self._place = place + 2
            return True
        self._place = place + 1
        if mark == b'"':
            self._in_text = not self._in_text
        elif mark in b"{[":
            if mark == b"{" and self._open == _AROUND:
                self._keep(place)
                self._place, self._in_object = 1, True
            self._open += mark
        else:
            del self._open[-1:]  # of whatever kind: the parser of the object, or of the rest, looks
        return True

    def _take_object(self) -> bytes:
        if self.num_requests == self._max_requests:
            raise InvalidRequestError(
                f"{REQUESTS} holds more than {self._max_requests} requests",
                param=REQUESTS,
                hint="send several batches",
            )
        self._check_size(self._place)
        taken = bytes(self._unread[: self._place])
        del self._unread[: self._place]
        self._place, self._in_object = 0, False
        self._rest += b"0"
        self.num_requests += 1
        return taken

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            param = f"{REQUESTS}[{self.num_requests}]"
            raise InvalidRequestError(f"{param} exceeds {self._max_bytes} bytes", param=param)

    def _keep(self, end: int) -> None:
        """Move what has been looked at to the rest."""
        self._rest += self._unread[:end]
        del self._unread[:end]
        self._place -= end
        if len(self._rest) > MAX_REST + _REST_FOR_EACH * self.num_requests:
            raise InvalidRequestError(
                f"the body holds too much beside its {REQUESTS}", hint="leave white space out"
            )


def _is_other(value: object) -> bool:
    return type(value) is not int or value != 0
