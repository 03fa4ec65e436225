"""Tool calls that an assistant made before and that were cut off: their arguments are no JSON.

Templates take arguments as objects, and an agent whose answer ran into ``max_tokens`` sends the
beginning of one back. Without the call the conversation can go on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from twostroke.server.openai.chat_messages import CallOfTool, ChatMessage


class WholeCalls(NamedTuple):
    """Messages in which each call is whole, and the places of what was left out."""

    messages: list[ChatMessage]
    left_out: list[str]


def without_cut_calls(messages: Sequence[ChatMessage]) -> WholeCalls:
    """The messages without calls that were cut off, and without what tools answered to those."""
    kept: list[ChatMessage] = []
    left_out: list[str] = []
    cut_ids: set[str] = set()
    for place, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in cut_ids:
            left_out.append(f"messages[{place}]")
            continue
        if message.role == "assistant" and message.tool_calls:
            cut = [i for i, call in enumerate(message.tool_calls) if _is_cut(call)]
            if cut:
                left_out += [f"messages[{place}].tool_calls[{i}]" for i in cut]
                calls = message.tool_calls
                cut_ids |= {call_id for i in cut if (call_id := calls[i].id) is not None}
                whole = [call for i, call in enumerate(calls) if i not in cut]
                message = message.model_copy(update={"tool_calls": whole or None})
            cut_ids -= {call.id or "" for call in message.tool_calls or ()}
        kept.append(message)
    return WholeCalls(kept, left_out)


def _is_cut(call: CallOfTool) -> bool:
    try:
        json.loads(call.function.arguments or "{}")
    except RecursionError:
        return False  # it is whole, and refused for its depth
    except ValueError:
        return True
    return False
