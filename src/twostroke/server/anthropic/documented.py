"""What the API document says of these routes: their errors, their streams, two shapes of models."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from twostroke.server.anthropic.message_answer import Message, MessageEvent, TokensCount
from twostroke.server.anthropic.models import ModelInfo, ModelPage
from twostroke.server.anthropic_shape import MODELS_PATH, OVERLOADED, VERSION, AnthropicError
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses

ANTHROPIC_ANSWERS: tuple[type[msgspec.Struct], ...] = (
    Message,
    *get_args(MessageEvent),
    TokensCount,
    ModelPage,
    ModelInfo,
)
_REF = "#/components/schemas/{name}"
_ERROR = {"$ref": _REF.format(name=AnthropicError.__name__)}
_RETRY = ERROR_RESPONSES[429]["headers"]


def _in_shape(response: dict[str, Any]) -> dict[str, Any]:
    return response | {"content": {"application/json": {"schema": _ERROR}}}


ANTHROPIC_ERRORS: Responses = {
    **{status: _in_shape(response) for status, response in ERROR_RESPONSES.items()},
    429: _in_shape({"description": "The key's limit is used up.", "headers": _RETRY}),
    OVERLOADED: _in_shape({"description": "Too many requests wait.", "headers": _RETRY}),
}


def stream_responses(answer: type[msgspec.Struct]) -> Responses:
    """The 200 of a route whose body is ``answer``, or the events that add up to it."""
    responses = answer_responses(answer, "The answer, or its events.", has_body=True)
    (events,), _ = msgspec.json.schema_components([MessageEvent], ref_template=_REF)
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": events}
    responses[200]["content"]["text/event-stream"] = {
        "schema": {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": data},
            "required": ["event", "data"],
            "description": "With stream=true: events under the names of their types.",
        }
    }
    return responses


def document_models(document: dict[str, Any]) -> None:
    """Add to the routes of models what they answer to Anthropic's clients."""
    for path, shape in ((MODELS_PATH, ModelPage), (MODELS_PATH + "/{name}", ModelInfo)):
        operation = document["paths"][path]["get"]
        operation.setdefault("parameters", []).append(
            {
                "name": VERSION,
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "description": "With it, answers and errors have Anthropic's shape.",
            }
        )
        for status, response in operation["responses"].items():
            content = response["content"]["application/json"]
            other = {"$ref": _REF.format(name=shape.__name__)} if status == "200" else _ERROR
            content["schema"] = {"anyOf": [content["schema"], other]}
