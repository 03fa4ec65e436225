"""What a field of the sampling parameters takes: declared in its annotation, as options do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cache
from typing import Any, NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.core.flags.declared import Must, declarations


class MustEach(NamedTuple):
    """What a value and each of its parts must be; the message shows the first part that is not.

    Attributes:
        allowed: Ends the sentence "field must be ...".
        parts: Returns the parts of a value that ``holds``.
    """

    allowed: str
    holds: Callable[[Any], bool]
    part_holds: Callable[[Any], bool]
    parts: Callable[[Any], Iterable[object]] = iter


def whole_number(allowed: str, least: int, most: int = 2**63 - 1) -> Must:
    """A whole number from ``least`` to ``most``, by default the largest that a message holds."""
    return Must(allowed, lambda value: _is_int(value) and least <= value <= most)


def whole_from(least: int, most: int) -> Must:
    return whole_number(f"an integer from {least} to {most}", least, most)


def number_in(least: float, most: float) -> Must:
    """A finite number, both ends included."""
    return Must(f"in [{least}, {most}]", lambda value: _is_number(value) and least <= value <= most)


def number_above(least: float, most: float) -> Must:
    """A finite number above ``least``, and at most ``most``."""
    return Must(f"in ({least}, {most}]", lambda value: _is_number(value) and least < value <= most)


def word_list(max_words: int, max_length: int) -> MustEach:
    return MustEach(
        f"at most {max_words} non-empty strings of at most {max_length} characters",
        lambda value: isinstance(value, (list, tuple)) and len(value) <= max_words,
        lambda word: isinstance(word, str) and 0 < len(word) <= max_length,
    )


def biases(max_tokens: int, size: float) -> MustEach:
    """Token ids to values from ``-size`` to ``size``."""

    def part_holds(part: Mapping[Any, Any]) -> bool:
        ((token, bias),) = part.items()
        return _is_int(token) and token >= 0 and _is_number(bias) and -size <= bias <= size

    return MustEach(
        f"at most {max_tokens} token ids with values in [-{size}, {size}]",
        lambda value: isinstance(value, Mapping) and len(value) <= max_tokens,
        part_holds,
        lambda value: ({token: bias} for token, bias in value.items()),
    )


def check_declared(params: Any, *names: str) -> None:
    """Check fields by their declarations, in the order of ``names``.

    Raises:
        InvalidRequestError: A value is not allowed; the message names the field.
    """
    for name, takes_none, must in _declared(params.__class__, names):
        value = getattr(params, name)
        if value is None and takes_none:
            continue
        if not must.holds(value):
            raise _must_be(name, must.allowed, value)
        if isinstance(must, MustEach):
            for part in must.parts(value):
                if not must.part_holds(part):
                    raise _must_be(name, must.allowed, part)


def require_field(condition: bool, param: str, value: object, allowed: str) -> None:
    """Raise ``InvalidRequestError`` for a field whose value is not allowed."""
    if not condition:
        raise _must_be(param, allowed, value)


def _must_be(param: str, allowed: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(f"{param} must be {allowed}, got {_short(value)}", param=param)


@cache
def _declared(section: type, names: tuple[str, ...]) -> list[tuple[str, bool, Must | MustEach]]:
    """Names, whether ``None`` is taken, and what else is."""
    of_section = declarations(section)
    return [
        (name, type(None) in of_section[name].kinds, note)
        for name in names
        for note in of_section[name].notes
        if isinstance(note, Must | MustEach)
    ]


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a huge number"
    return text if len(text) <= 100 else text[:100] + "..."


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # Integers are left to the ranges: isfinite would overflow on large ones.
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_token_list(value: Any) -> bool:
    if not isinstance(value, (list, tuple, frozenset, set)):
        return False
    # By types, of which there are few: a list may hold a whole vocabulary.
    if not all(issubclass(kind, int) and kind is not bool for kind in set(map(type, value))):
        return False
    return not value or (min(value) >= 0 and max(value) < 2**31)


def _is_filled_token_list(value: Sized) -> bool:
    return _is_token_list(value) and len(value) > 0


TOKEN_IDS = Must("a list of token ids", _is_token_list)
SOME_TOKEN_IDS = Must("a non-empty list of token ids", _is_filled_token_list)
