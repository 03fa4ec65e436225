"""Pages of lists of items."""

from __future__ import annotations

from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.server.responses.objects import InputItemList

MAX_PAGE = 100


def page_of(items: list[dict[str, Any]], limit: int, after: str | None) -> InputItemList:
    """At most ``limit`` items, those after the item ``after``.

    Raises:
        InvalidRequestError: There is no such item.
    """
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequestError(
                f"after is {after[:100]!a}, which is none of the items",
                param="after",
                hint="give the last_id of the page before",
            )
        start = places[0] + 1
    page = items[start : start + limit]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=start + limit < len(items),
    )
