"""From exceptions to HTTP: one table gives each class its status, ``type`` and ``code``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from twostroke.core.errors import (
    AdminKeyNeededError,
    EngineDeadError,
    EngineError,
    InvalidKeyError,
    InvalidRequestError,
    LimitStorageError,
    LogprobsFullError,
    MissingKeyError,
    ModelLoadingError,
    ModelNotFoundError,
    NonFiniteLogitsError,
    PredictedLateError,
    QueueFullError,
    RequestFailedError,
    RequestRateError,
    RequestTooLargeError,
    RevokedKeyError,
    ShuttingDownError,
    TokenizerError,
    TokenRateError,
    TwostrokeError,
)
from twostroke.http.errors import (
    BodyMemoryFullError,
    BodyTooLargeError,
    ForeignHostError,
    ForeignOriginError,
    HeadTooLargeError,
    RequestTimeoutError,
)
from twostroke.http.request_id import answer_id, request_digits, request_id
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import trace_of
from twostroke.server.anthropic_shape import (
    REQUEST_ID,
    anthropic_error,
    anthropic_request_id,
    anthropic_status,
    speaks_anthropic,
)
from twostroke.server.http.validation_errors import describe_validation
from twostroke.server.plain_shapes import plain_error

logger = logging.getLogger(__name__)


class ThreadUnsupportedError(InvalidRequestError):
    """A request of Anthropic's API asks the server to hold its conversation."""


class ResponseNotFoundError(InvalidRequestError):
    """No response of this id is stored for the caller's key."""


class ConversationNotFoundError(InvalidRequestError):
    """No conversation of this id, or no item of it, is stored for the caller's key."""


class PreviousResponseNotFoundError(InvalidRequestError):
    """A conversation cannot go on from a response that is not stored."""


class FilesFullError(InvalidRequestError):
    """The stored files leave no room for another."""


class FileNotStoredError(InvalidRequestError):
    """No file of this id is stored for the caller's key."""


class BatchNotStoredError(InvalidRequestError):
    """No batch of this id is stored for the caller's key."""


class TooManyBatchesError(TwostrokeError):
    """The caller's key has more batches under way than it may."""


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
    ThreadUnsupportedError: ErrorRule(400, "invalid_request_error", "thread_unsupported_request"),
    ResponseNotFoundError: ErrorRule(404, "invalid_request_error", "response_not_found"),
    ConversationNotFoundError: ErrorRule(404, "invalid_request_error", "conversation_not_found"),
    PreviousResponseNotFoundError: ErrorRule(
        400, "invalid_request_error", "previous_response_not_found"
    ),
    BodyTooLargeError: ErrorRule(413, "invalid_request_error", "body_too_large"),
    BodyMemoryFullError: ErrorRule(503, "server_error", "body_memory_full", retry_after=1),
    FilesFullError: ErrorRule(413, "invalid_request_error", "files_full"),
    FileNotStoredError: ErrorRule(404, "invalid_request_error", "file_not_found"),
    BatchNotStoredError: ErrorRule(404, "invalid_request_error", "batch_not_found"),
    TooManyBatchesError: ErrorRule(429, "rate_limit_error", "too_many_batches", retry_after=60),
    HeadTooLargeError: ErrorRule(431, "invalid_request_error", "head_too_large"),
    RequestTimeoutError: ErrorRule(408, "invalid_request_error", "request_timeout"),
    ForeignHostError: ErrorRule(403, "invalid_request_error", "foreign_host"),
    ForeignOriginError: ErrorRule(403, "invalid_request_error", "foreign_origin"),
    MissingKeyError: ErrorRule(401, "invalid_request_error", "missing_api_key"),
    InvalidKeyError: ErrorRule(401, "invalid_request_error", "invalid_api_key"),
    RevokedKeyError: ErrorRule(403, "invalid_request_error", "revoked_api_key"),
    AdminKeyNeededError: ErrorRule(403, "invalid_request_error", "admin_key_needed"),
    # OpenAI's types name what there was too much of.
    RequestRateError: ErrorRule(429, "requests", "rate_limit_exceeded", retry_after=1),
    TokenRateError: ErrorRule(429, "tokens", "rate_limit_exceeded", retry_after=1),
    LimitStorageError: ErrorRule(503, "server_error", "rate_limit_storage", retry_after=5),
    QueueFullError: ErrorRule(429, "rate_limit_error", "queue_full", retry_after=1),
    PredictedLateError: ErrorRule(429, "rate_limit_error", "predicted_late", retry_after=1),
    LogprobsFullError: ErrorRule(429, "rate_limit_error", "logprobs_full", retry_after=5),
    ShuttingDownError: ErrorRule(503, "server_error", "shutting_down", retry_after=5),
    ModelLoadingError: ErrorRule(503, "server_error", "model_loading", retry_after=2),
    EngineDeadError: ErrorRule(503, "server_error", "engine_dead", retry_after=10),
    EngineError: ErrorRule(500, "server_error", "engine_error"),
    RequestFailedError: ErrorRule(500, "server_error", "request_failed"),
    NonFiniteLogitsError: ErrorRule(500, "server_error", "non_finite_logits"),
    TokenizerError: ErrorRule(500, "server_error", "tokenizer_failed"),
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


def error_text(error: Exception) -> str:
    """The message of an error; that of any other error than a ``TwostrokeError`` stays hidden."""
    if isinstance(error, TwostrokeError):
        return _printable(f"{error.message}. Hint: {error.hint}" if error.hint else error.message)
    return "internal server error; the server's log has the cause"


def encode_error(error: Exception) -> bytes:
    """``{"error": {...}}``."""
    return _encode_envelope(error_text(error), error_rule(error), getattr(error, "param", None))


class ErrorResponse(Response):
    """An error in OpenAI's shape; a request that expects another dialect's gets that."""

    def __init__(
        self, message: str, rule: ErrorRule, param: str | None, retry_after: int | None
    ) -> None:
        self._message, self._rule = _printable(message), rule
        body = _encode_envelope(message, rule, param)
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        super().__init__(body, rule.status, headers, "application/json")

    def shaped(self, scope: Scope) -> Response:
        """The response as the request of ``scope`` expects it."""
        status, extra = self._rule.status, {}
        error: msgspec.Struct | None = plain_error(scope.get("path", ""), self._message, status)
        if error is None:
            if not speaks_anthropic(scope):
                return self
            name = anthropic_request_id(request_digits(scope))
            status, extra = anthropic_status(status, self._rule.code), {REQUEST_ID: name}
            error = anthropic_error(self._message, status, self._rule.code, name)
        headers = {key: value for key, value in self.headers.items() if key != "content-length"}
        return Response(msgspec.json.encode(error), status, {**headers, **extra})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = {names.ERROR_TYPE: self._rule.code or self._rule.type, names.REASON: self._message}
        trace_of(scope).event(names.ERROR, why)
        response = self.shaped(scope)
        respond = super().__call__ if response is self else response
        await respond(scope, receive, send)


def error_response(error: Exception) -> ErrorResponse:
    rule = error_rule(error)
    response = ErrorResponse(
        error_text(error),
        rule,
        getattr(error, "param", None),
        getattr(error, "retry_after", rule.retry_after),
    )
    if rule.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of ``app`` OpenAI's shape, or that of another dialect where expected.

    That is ``TwostrokeError``, the validator's errors, unknown routes and bugs.
    """

    async def typed_error(request: Request, error: Exception) -> Response:
        if isinstance(error, MemoryError):
            raise error  # nothing that is left here could answer
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
        # A bug is answered outside all other layers, so nothing else adds the header.
        response.headers["x-request-id"] = answer_id(request.scope)
        return response

    async def invalid_body(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(describe_validation(error.errors()))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, TwostrokeError):
            return error_response(error.__cause__)
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__
        if error.status_code == 400:
            # FastAPI raises this for bodies alone, and without the reason.
            return error_response(InvalidRequestError(UNREADABLE))
        status, path = error.status_code, request.url.path
        if status == 405 and request.path_params:
            # Clients probe for POST /v1/responses/NAME, where NAME is no id.
            status, path = 404, f"{request.method} {path}"
        messages = {
            404: f"there is no {path} here; /docs lists the routes",
            405: f"{path} does not take {request.method}",
        }
        rule = ErrorRule(status, _http_type(status), _HTTP_CODES.get(status))
        response = ErrorResponse(messages.get(status, str(error.detail)), rule, None, None)
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["allow"] = ", ".join(_methods(request))
        return response

    app.add_exception_handler(TwostrokeError, typed_error)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, typed_error)


UNREADABLE = (
    "the body is not valid JSON in UTF-8, is nested too deeply, or holds a number that is too long"
)
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


def _methods(request: Request) -> list[str]:
    """All methods of a path; Starlette gives only those of its first route."""
    path: str = request.scope["path"]
    methods = _taken(request, path)
    if request.path_params:
        return methods
    # A path that is spelt out has none of those that an id in its last place has.
    of_ids = _taken(request, f"{path}-")
    return [method for method in methods if method not in of_ids]


def _taken(request: Request, path: str) -> list[str]:
    verbs = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
    routes: Sequence[BaseRoute] = request.app.routes
    scopes = {verb: {**request.scope, "method": verb, "path": path} for verb in verbs}
    return [
        verb
        for verb, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


def _http_type(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def _encode_envelope(message: str, rule: ErrorRule, param: str | None) -> bytes:
    body = ErrorBody(
        _printable(message), rule.type, None if param is None else _printable(param), rule.code
    )
    return msgspec.json.encode(ErrorEnvelope(body))


def _printable(text: str) -> str:
    # A client's JSON may carry lone surrogates, which no encoder writes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
