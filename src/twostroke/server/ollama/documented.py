"""What the API document says of these routes: their errors and their streams."""

from __future__ import annotations

from typing import Any

import msgspec

from twostroke.server.http.api_document import Responses, answer_responses, errors_shaped
from twostroke.server.ollama.generation_answer import LINES
from twostroke.server.plain_shapes import OllamaError

OLLAMA_ERRORS = errors_shaped(OllamaError)


def line_responses(line: type[msgspec.Struct]) -> Responses:
    """The 200 of a route whose body is ``line``, or lines that add up to it."""
    responses = answer_responses(line, "The answer; or, streamed, its lines.", has_body=True)
    content: dict[str, Any] = responses[200]["content"]
    error = OLLAMA_ERRORS[500]["content"]["application/json"]["schema"]
    content[LINES] = {
        "schema": {
            "anyOf": [content["application/json"]["schema"], error],
            "description": "Unless stream is false: a line each; an error is the last one.",
        }
    }
    return responses
