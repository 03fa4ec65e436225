"""How large a client's JSON value is, and how long its schemas may take, within bounds."""

from __future__ import annotations

from twostroke.core.errors import InvalidRequestError

MAX_NODES = 50_000
MAX_DEPTH = 100  # the library's own parser of JSON ends at 128
MAX_WORK = 5_000_000  # units of some 0.2 us: as long as a compilation may take


class TooMuchWorkError(Exception):
    """Schemas take longer to check than they may."""


class WorkLimit:
    """Bounds the time that all schemas of one grammar take before the library sees them."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def spend(self, units: int) -> None:
        """Count work that is about to be done; it raises ``TooMuchWorkError``."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWorkError


def check_size(value: object, max_chars: int, param: str) -> None:
    """Raise InvalidRequestError if a JSON value is too large or nested too deeply to be used.

    Args:
        max_chars: Limit on the length of all texts in it together, keys included.
    """
    num_nodes = num_chars = 0
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for node in level:
            num_nodes += 1
            if isinstance(node, dict):
                num_chars += sum(map(len, node))
                below.extend(node.values())
            elif isinstance(node, (list, tuple)):
                below.extend(node)
            elif isinstance(node, str):
                num_chars += len(node)
            if num_nodes + len(below) > MAX_NODES or num_chars > max_chars:
                raise InvalidRequestError(
                    f"{param} is too large: at most {MAX_NODES} values and {max_chars} characters"
                    " of text are taken",
                    param=param,
                    hint="use a smaller one",
                )
        if not below:
            return
        level = below
    raise InvalidRequestError(
        f"{param} is nested more than {MAX_DEPTH} levels deep",
        param=param,
        hint="define parts under $defs and refer to them",
    )


def first_inexact_number(value: object) -> int | float | None:
    """A number too large for every parser of JSON to read it alike; ``None`` if there is none."""
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
        elif isinstance(node, (int, float)) and not -(2**53) < node < 2**53:
            return node
    return None
