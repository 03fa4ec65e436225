"""The header ``x-ignored-fields``: which fields of a body were accepted and ignored."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

IGNORED_FIELDS = "x-ignored-fields"
MAX_NAMED = 64
MAX_NAME_LENGTH = 100


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header, if there is anything to name. Clients choose the names, so they are quoted."""
    if not names:
        return {}
    named = [quote(ascii(name[:MAX_NAME_LENGTH])[1:-1], safe="[]._-") for name in names[:MAX_NAMED]]
    return {IGNORED_FIELDS: ", ".join([*named, *["..."] * (len(names) > MAX_NAMED)])}
