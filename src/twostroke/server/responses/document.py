"""What the API document says of a response's events."""

from __future__ import annotations

from typing import Any

from twostroke.server.responses.events import EVENTS, event_type


def event_stream() -> dict[str, Any]:
    """The content of an answer that is a stream of events."""
    kinds = [{"$ref": f"#/components/schemas/{event.__name__}"} for event in EVENTS]
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": kinds},
        "description": "The event; its number is one more than that of the event before.",
    }
    schema = {
        "type": "object",
        "properties": {"event": {"enum": [event_type(event) for event in EVENTS]}, "data": data},
        "required": ["event", "data"],
        "description": "With stream=true: server-sent events of this form.",
    }
    return {"text/event-stream": {"schema": schema}}
