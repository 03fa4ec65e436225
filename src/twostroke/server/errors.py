"""From exceptions to HTTP: one table gives the status and OpenAI's ``type`` and ``code`` for every
class.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from twostroke.core.errors import (
    EngineDeadError,
    EngineError,
    InvalidKeyError,
    InvalidRequestError,
    LimitStorageError,
    MissingKeyError,
    NonFiniteLogitsError,
    QueueFullError,
    RequestFailedError,
    RequestRateError,
    RequestTooLargeError,
    RevokedKeyError,
    ShuttingDownError,
    TokenRateError,
    TwostrokeError,
)
from twostroke.server.request_id import request_id

logger = logging.getLogger(__name__)


class ModelNotFoundError(InvalidRequestError):
    """A request names a model that this server does not serve."""


class BodyTooLargeError(InvalidRequestError):
    """A request's body exceeds ``--max-body-size``."""


class MalformedRequestError(InvalidRequestError):
    """What came is no HTTP."""


class HeadTooLargeError(InvalidRequestError):
    """The request's line and headers are larger than any client has reason to send."""


class RequestTimeoutError(InvalidRequestError):
    """The rest of a request did not come."""


class ModelLoadingError(TwostrokeError):
    """The model is not there yet (or could not be loaded)."""


class ErrorRule(NamedTuple):
    """How one class of error looks to a client."""

    status: int
    type: str
    code: str | None
    retry_after: int | None = None


# The most derived class of an exception that is listed here decides.
ERROR_RULES: dict[type[BaseException], ErrorRule] = {
    InvalidRequestError: ErrorRule(400, "invalid_request_error", "invalid_value"),
    RequestTooLargeError: ErrorRule(400, "invalid_request_error", "context_length_exceeded"),
    ModelNotFoundError: ErrorRule(404, "invalid_request_error", "model_not_found"),
    BodyTooLargeError: ErrorRule(413, "invalid_request_error", "body_too_large"),
    HeadTooLargeError: ErrorRule(431, "invalid_request_error", "head_too_large"),
    RequestTimeoutError: ErrorRule(408, "invalid_request_error", "request_timeout"),
    MissingKeyError: ErrorRule(401, "invalid_request_error", "missing_api_key"),
    InvalidKeyError: ErrorRule(401, "invalid_request_error", "invalid_api_key"),
    RevokedKeyError: ErrorRule(403, "invalid_request_error", "revoked_api_key"),
    # OpenAI's types name what there was too much of.
    RequestRateError: ErrorRule(429, "requests", "rate_limit_exceeded", retry_after=1),
    TokenRateError: ErrorRule(429, "tokens", "rate_limit_exceeded", retry_after=1),
    LimitStorageError: ErrorRule(503, "server_error", "rate_limit_storage", retry_after=5),
    QueueFullError: ErrorRule(429, "rate_limit_error", "queue_full", retry_after=1),
    ShuttingDownError: ErrorRule(503, "server_error", "shutting_down", retry_after=5),
    ModelLoadingError: ErrorRule(503, "server_error", "model_loading", retry_after=2),
    EngineDeadError: ErrorRule(503, "server_error", "engine_dead", retry_after=10),
    EngineError: ErrorRule(500, "server_error", "engine_error"),
    RequestFailedError: ErrorRule(500, "server_error", "request_failed"),
    NonFiniteLogitsError: ErrorRule(500, "server_error", "non_finite_logits"),
    Exception: ErrorRule(500, "server_error", "internal_error"),
}


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    error: ErrorBody


def error_rule(error: BaseException) -> ErrorRule:
    """The rule of the nearest ancestor of ``error`` in the table."""
    return next(ERROR_RULES[cls] for cls in type(error).__mro__ if cls in ERROR_RULES)


def encode_error(error: Exception) -> bytes:
    """``{"error": {...}}`` for an exception; what is not ours is not shown to the client."""
    rule = error_rule(error)
    if isinstance(error, TwostrokeError):
        message = f"{error.message}. Hint: {error.hint}" if error.hint else error.message
        return _encode(message, rule, getattr(error, "param", None))
    return _encode("internal server error; the server's log has the cause", rule, None)


def error_response(error: Exception) -> Response:
    rule = error_rule(error)
    response = _response(
        encode_error(error), rule.status, getattr(error, "retry_after", rule.retry_after)
    )
    if rule.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of ``app`` OpenAI's shape: ours, the validator's, unknown routes and the
    unforeseen.
    """

    async def ours(request: Request, error: Exception) -> Response:
        if error_rule(error).status == 500:
            name = request_id(request.scope)
            logger.error(
                "%s: %s %s failed: %s",
                name,
                request.method,
                request.url.path,
                error,
                exc_info=error,
            )
        response = error_response(error)
        # What nobody foresaw is answered outside all other layers.
        response.headers["x-request-id"] = request_id(request.scope)
        return response

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(describe_validation(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, TwostrokeError):
            return error_response(error.__cause__)
        if error.status_code == 400:
            # FastAPI says this of bodies alone, and without the reason.
            return error_response(InvalidRequestError(UNREADABLE))
        messages = {
            404: f"there is no {request.url.path} here; /docs lists the routes",
            405: f"{request.url.path} does not take {request.method}",
        }
        rule = ErrorRule(
            error.status_code, _http_type(error.status_code), _HTTP_CODES.get(error.status_code)
        )
        body = _encode(messages.get(error.status_code, str(error.detail)), rule, None)
        response = _response(body, error.status_code, None)
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["allow"] = ", ".join(_methods(request))
        return response

    app.add_exception_handler(TwostrokeError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, ours)


def describe_validation(errors: Sequence[Any]) -> InvalidRequestError:
    """One sentence, with the field's name, for the first field that the validator complains
    about.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        return InvalidRequestError(
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}"
        )
    if first["type"] == "string_unicode":
        # Values are checked later, so this is a key; its place is all that can be said of it.
        where = _field_name(first["loc"]) or "the body"
        return InvalidRequestError(
            f"{where} holds a key that is not Unicode", param=_field_name(first["loc"]) or None
        )
    if len(first["loc"]) < 2 and first["type"] not in ("unsupported_field", "unknown_field"):
        hint = "send a JSON object, with the header Content-Type: application/json"
        return InvalidRequestError("the body must be a JSON object", hint=hint)
    # A union complains once for each of its members; the one that got furthest is the one that was
    # meant.
    same_field = [error for error in errors if error["loc"][:2] == first["loc"][:2]]
    error = max(same_field, key=lambda error: (error["type"] == "too_long", len(error["loc"])))
    param = _field_name(error["loc"])
    if error["type"] == "extra_forbidden":
        # The last part is the client's own word, whatever it looks like.
        return _unknown_field(_field_name(error["loc"][:-1]), str(error["loc"][-1]))
    if error["type"] == "unknown_field":
        return _unknown_field(param, error["ctx"]["field"])
    if error["type"] == "unsupported_field":
        param = f"{param}.{error['ctx']['field']}".lstrip(".")
        return InvalidRequestError(
            f"{param} is not supported by this server", param=param, hint="leave it out"
        )
    if error["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param)
    if error["type"] == "too_short":
        return InvalidRequestError(f"{param} is empty", param=param, hint="send at least one")
    if error["type"] == "too_long":
        most = f"{error['ctx']['max_length']} {error['ctx'].get('of', 'items')}"
        return InvalidRequestError(
            f"{param} holds more than {most}", param=param, hint="send fewer"
        )
    texts = dict.fromkeys(e["msg"] for e in same_field if _field_name(e["loc"]) == param)
    message = f"{param}: " + " or ".join(text[0].lower() + text[1:] for text in texts)
    text_only = error["type"] == "literal_error" and param.startswith("messages")
    return InvalidRequestError(message, param=param, hint=TEXT_ONLY if text_only else None)


def _unknown_field(parent: str, name: str) -> InvalidRequestError:
    name = name if len(name) <= 100 else name[:100] + "..."
    param = f"{parent}.{name}" if parent else name
    return InvalidRequestError(f"unknown field {param!r}", param=param)


def _field_name(loc: Sequence[str | int]) -> str:
    """``messages[0].content`` from pydantic's location, without its names for the members of
    unions.
    """
    name = ""
    for part in loc[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part not in _UNION_TAGS and "[" not in part:
            name += f".{part}" if name else part
    return name


# In messages, only the types of parts and the roles have a fixed set of values.
TEXT_ONLY = "this server takes text only: no images, audio, files or tools"
UNREADABLE = (
    "the body is not valid JSON in UTF-8, is nested too deeply, or holds a number that is too long"
)
_UNION_TAGS = frozenset({"str", "int", "float", "bool", "dict", "list"})
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


def _methods(request: Request) -> list[str]:
    """All methods of a path; Starlette tells only those of the first of its routes."""
    verbs = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
    routes: Sequence[BaseRoute] = request.app.routes
    return [
        verb
        for verb in verbs
        if any(r.matches({**request.scope, "method": verb})[0] is Match.FULL for r in routes)
    ]


def _http_type(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def _encode(message: str, rule: ErrorRule, param: str | None) -> bytes:
    body = ErrorBody(
        _printable(message), rule.type, None if param is None else _printable(param), rule.code
    )
    return msgspec.json.encode(ErrorEnvelope(body))


def _printable(text: str) -> str:
    # A client's JSON may carry lone surrogates, which no encoder writes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _response(body: bytes, status: int, retry_after: int | None) -> Response:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Response(body, status_code=status, media_type="application/json", headers=headers)
