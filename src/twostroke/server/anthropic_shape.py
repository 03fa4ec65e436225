"""What clients of Anthropic's API find in every answer: ``request-id``, and errors in its shape.

Errors are made in many layers, some of which stand before all routes. So the request's path decides
about their shape, when they are sent.
"""

from __future__ import annotations

import msgspec
from starlette.types import Scope

REQUEST_ID = "request-id"
VERSION = "anthropic-version"
MESSAGES_PATH, MODELS_PATH = "/v1/messages", "/v1/models"
OVERLOADED = 529
# Source: "Errors" of Anthropic's API reference. Other statuses below 500 are invalid requests.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


class AnthropicErrorDetails(msgspec.Struct):
    error_code: str


class AnthropicErrorBody(msgspec.Struct):
    __doc__ = "Anthropic's error object: ``type`` follows from the status."

    type: str
    message: str
    details: AnthropicErrorDetails | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct, tag_field="type", tag="error", kw_only=True):
    error: AnthropicErrorBody
    request_id: str


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request expects Anthropic's shapes: by its path, or by its header."""
    path = scope.get("path", "")
    if path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/"):
        return True
    return (path == MODELS_PATH or path.startswith(MODELS_PATH + "/")) and any(
        name == VERSION.encode() for name, _ in scope["headers"]
    )


def anthropic_request_id(digits: str) -> str:
    """What the header ``request-id`` says, of the request with these ``request_digits``."""
    return f"req_{digits}"


def anthropic_status(status: int, code: str | None) -> int:
    """The status of an error: 429 is the client's own limit, a full queue is not."""
    return OVERLOADED if code == "queue_full" else status


def anthropic_error(message: str, status: int, code: str | None, request_id: str) -> AnthropicError:
    """An error.

    Args:
        status: See ``anthropic_status``.
        code: What it is called beside its type, if anything.
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    body = AnthropicErrorBody(kind, message)
    if code is not None:
        body.details = AnthropicErrorDetails(code)
    return AnthropicError(error=body, request_id=request_id)
