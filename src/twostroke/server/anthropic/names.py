"""What this dialect calls the fields of a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from twostroke.core.structured_outputs import PARAM
from twostroke.server.generation.field_names import FieldNames

FORMAT = "output_config.format"
_TOOL = re.compile(r"tools\[(\d+)\]\.function(\.parameters)?")


def _tool(param: str, places: Sequence[int] | None = None) -> str | None:
    if (match := _TOOL.match(param)) is None:
        return None
    place = match[1] if places is None else places[int(match[1])]
    return f"tools[{place}]{'.input_schema' if match[2] else ''}{param[match.end() :]}"


# Errors of this API have no field for the place.
NAMES = FieldNames(
    pairs=(("stop", "stop_sequences"), (f"{PARAM}.json", f"{FORMAT}.schema"), (PARAM, FORMAT)),
    placed=_tool,
    sentences=True,
)


def names_of_tools(places: Sequence[int]) -> FieldNames:
    """The names where tools are counted without those that run elsewhere.

    Args:
        places: Where the request has each.
    """
    return replace(NAMES, placed=lambda param: _tool(param, places))
