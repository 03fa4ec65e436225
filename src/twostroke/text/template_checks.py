"""How long the results of filters, methods and operators may get, known before they are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from twostroke.text.template_budget import RenderBudget

# A check gets the budget, the value and the arguments; it returns the most characters of a result.
Check = Callable[..., int]

MAX_WIDTH = 9999  # of a field in a format, which has four digits
MAX_INDENT = 16
MAX_INTEGER_BITS = 4096
MAX_DIGITS = 4300  # as Python itself converts
_LONG_NUMBER = re.compile(r"\d{5}")
_NESTED_FIELD = re.compile(r"\{[^{}]*:[^{}]*\{")


def check_percent(budget: RenderBudget, layout: str, values: object) -> int:
    """Check ``layout % values``."""
    return _laid_out(layout, layout.count("%"), "*" in layout, budget.size(values))


def check_format(budget: RenderBudget, layout: str, *values: object, **named: object) -> int:
    """Check ``layout.format(...)``."""
    takes_widths = _NESTED_FIELD.search(layout) is not None
    size = budget.size(values) + budget.size(named)
    return _laid_out(layout, layout.count("{"), takes_widths, size)


def check_product(budget: RenderBudget, left: object, right: object) -> int:
    """Check ``left * right``."""
    for items, times in ((left, right), (right, left)):
        if isinstance(items, (str, bytes, list, tuple)) and isinstance(times, int):
            return (budget.size(items) + 2) * max(times, 0)
    numbers = [number for number in (left, right) if isinstance(number, int)]
    if len(numbers) == 2 and sum(map(int.bit_length, numbers)) > MAX_INTEGER_BITS:
        raise SecurityError("a number is too large")
    return 0


def check_power(budget: RenderBudget, left: object, right: object) -> int:
    """Check ``left ** right``."""
    for number, limit in ((left, 2**32), (right, 64)):
        if isinstance(number, (int, float)) and abs(number) > limit:
            raise SecurityError("a power is too large")
    return 0


def _laid_out(layout: str, fields: int, takes_widths: bool, size: int) -> int:
    if takes_widths or _LONG_NUMBER.search(layout):
        raise SecurityError("a width in a format is too large")
    return len(layout) + fields * (MAX_WIDTH * any(map(str.isdecimal, layout)) + size)


def _padded(_: RenderBudget, text: object, width: int = 80, *rest: object) -> int:
    return width


def _joined(budget: RenderBudget, separator: object, items: object) -> int:
    return budget.size(items) + _count(items) * budget.size(separator)


def _joined_by_filter(
    budget: RenderBudget, items: object, d: object = "", attribute: object = None
) -> int:
    return _joined(budget, d, items)


def _replaced(
    budget: RenderBudget, text: object, old: object, new: object, count: int | None = -1
) -> int:
    written, sought = str(text), str(old)
    times = written.count(sought)
    if count is not None and count >= 0:
        times = min(times, count)
    return len(written) + times * max(0, budget.size(new) - len(sought))


def _expanded(budget: RenderBudget, text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * max(tabsize, 0)


def _translated(budget: RenderBudget, text: str, table: object) -> int:
    return len(text) * max(1, budget.size(table))


def _indented(
    budget: RenderBudget, text: object, width: int | str = 4, *rest: object, **named: object
) -> int:
    size = len(width) if isinstance(width, str) else width
    return budget.size(text) + (str(text).count("\n") + 1) * size


def _formatted(budget: RenderBudget, layout: object, *values: object, **named: object) -> int:
    return check_percent(budget, str(layout), [*values, *named.items()])


def _as_json(
    budget: RenderBudget,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> int:
    width = len(indent) if isinstance(indent, str) else indent or 0
    widths = [width, *map(len, separators or ())]
    if max(widths) > MAX_INDENT:
        raise SecurityError("JSON is indented too far")
    size = budget.size(value)
    return size + (size // 2 * width * _depth(value) if width else 0)


def _batched(budget: RenderBudget, value: object, linecount: int, fill_with: object = None) -> int:
    budget.take_steps(max(linecount, 0))
    return max(linecount, 0) * budget.size(fill_with)


def _sliced(budget: RenderBudget, value: object, slices: int, fill_with: object = None) -> int:
    return _batched(budget, value, slices, fill_with)


def _rounded(budget: RenderBudget, value: object, precision: int = 0, method: str = "") -> int:
    if abs(precision) > 300:
        raise SecurityError("a number is rounded to too many digits")
    return 0


def _summed(
    budget: RenderBudget, items: object, attribute: object = None, start: object = 0
) -> int:
    if not isinstance(start, (int, float)):
        raise SecurityError("only numbers are summed up")
    return 0


def _as_integer(budget: RenderBudget, value: object, *rest: object, **named: object) -> int:
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise SecurityError("a number is too long")
    return 0


def _depth(value: object) -> int:
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (Mapping, list, tuple)):
        return 1 + max(map(_depth, items), default=0)  # type: ignore[call-overload]
    return 0


def _count(items: Any) -> int:
    return len(items) if hasattr(items, "__len__") else 0


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


FILTER_CHECKS: dict[str, Check] = {
    "batch": _batched,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "int": _as_integer,
    "join": _joined_by_filter,
    "replace": _replaced,
    "round": _rounded,
    "slice": _sliced,
    "sum": _summed,
    "tojson": _as_json,
}
# Filters whose results are no longer than what they are given, and that take no time of note.
HARMLESS_FILTERS = _names(
    "abs attr capitalize count d default first float items last length lower safe string title trim"
    " truncate upper wordcount"
)
# Filters that go through the items of what they are given.
ITERATING_FILTERS = _names(
    "batch groupby join list map max min reject rejectattr reverse select selectattr slice sort sum"
    " unique"
)
# Prompts need none of them, and their results are hard to bound.
REMOVED_FILTERS = ("pprint", "urlize", "wordwrap", "xmlattr")

METHOD_CHECKS: dict[str, Check] = {
    "center": _padded,
    "expandtabs": _expanded,
    "format": check_format,
    "format_map": check_format,
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "translate": _translated,
    "zfill": _padded,
}
# Methods that templates may call; the sandbox refuses those among them that change something.
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(METHOD_CHECKS)
    | _names(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit"
        " isidentifier islower isnumeric isprintable isspace istitle isupper lower lstrip partition"
        " removeprefix removesuffix rfind rindex rpartition rsplit rstrip split splitlines"
        " startswith strip swapcase title upper"
    ),
    list: _names("append clear copy count extend index insert pop remove reverse sort"),
    tuple: _names("count index"),
    dict: _names("clear copy get items keys pop popitem setdefault update values"),
    int: _names("bit_length is_integer"),
    float: _names("is_integer"),
    bytes: frozenset(),
    range: _names("count index"),
    type: frozenset(),
}
