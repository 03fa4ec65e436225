"""Rows of steps merged further, without their shares."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.observability.frames.columns import StepColumns

_SUMS = ("tokens", "prompt", "new", "budget", "queries", "hits")


def merge_rows(parts: Sequence[StepColumns], max_rows: int) -> StepColumns:
    """The rows of all parts, neighbours merged until they are no more than ``max_rows``.

    Sums stay sums, times begin with the first and end with the last, counts are the last one's.
    """
    whole = StepColumns()
    for name in StepColumns.__struct_fields__:
        column = getattr(whole, name)
        for part in parts:
            column += getattr(part, name)
    size = -(-len(whole.step) // max_rows)
    if size <= 1:
        return whole
    merged = StepColumns()
    for first in range(0, len(whole.step), size):
        last = min(first + size, len(whole.step)) - 1
        for name in StepColumns.__struct_fields__:
            column, target = getattr(whole, name), getattr(merged, name)
            if name in _SUMS:
                target.append(sum(column[first : last + 1]))
            elif name == "longest":
                target.append(max(column[first : last + 1]))
            elif name in ("step", "time"):
                target.append(column[first])
            elif name == "span":
                target.append(whole.step[last] + whole.span[last] - whole.step[first])
            elif name == "duration":
                end = whole.time[last] + whole.duration[last]
                target.append(round(end - whole.time[first], 6))
            else:
                target.append(column[last])
    return merged
