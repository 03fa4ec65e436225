"""The API document: what each route may answer, with the schemas of the encoded answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from twostroke.gateway.gateway import Gateway
from twostroke.server.http.errors import ErrorEnvelope
from twostroke.server.http.ignored_header import IGNORED_FIELDS

Responses = dict[int | str, dict[str, Any]]

_SCHEMA_REF = "#/components/schemas/{name}"
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "schema": {"type": "integer"},
    }
}

_IGNORED = {
    IGNORED_FIELDS: {
        "description": "Fields of the body that were accepted and ignored, if there were any.",
        "schema": {"type": "string"},
    }
}

LIMIT_HEADERS = {
    f"x-ratelimit-{what}-{of}": {"description": description.format(of), "schema": {"type": kind}}
    for of in ("requests", "tokens")
    for what, description, kind in (
        ("limit", "The key's {} per minute, if they are limited.", "integer"),
        ("remaining", "{} that are left of them.", "integer"),
        ("reset", "Until all of its {} are free again, such as 1m0s.", "string"),
    )
}


def _reference(schema: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _SCHEMA_REF.format(name=schema.__name__)}


def answer_responses(
    answer: type[msgspec.Struct],
    description: str,
    *,
    stream: type[msgspec.Struct] | None = None,
    has_body: bool = False,
) -> Responses:
    """The 200 of a route whose body is ``answer``, or server-sent events of type ``stream``.

    Args:
        has_body: The request has a body, fields of which may be ignored.
    """
    content: dict[str, Any] = {"application/json": {"schema": _reference(answer)}}
    if stream is not None:
        content["text/event-stream"] = {"schema": _event_schema(stream)}
    response = {"description": description, "content": content}
    return {200: with_ignored(response) if has_body else response}


def with_ignored(response: dict[str, Any]) -> dict[str, Any]:
    """A 200 of a route with a body, fields of which may be ignored."""
    return {**response, "headers": _IGNORED}


def _event_schema(chunk: type[msgspec.Struct]) -> dict[str, Any]:
    pieces = {"anyOf": [_reference(chunk), _reference(ErrorEnvelope)]}
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": pieces}
    data = {
        "anyOf": [{"const": "[DONE]"}, json],
        "description": "A piece, an error after which none comes, or the end.",
    }
    description = "With stream=true: server-sent events of this form."
    return {
        "type": "object",
        "properties": {"data": data},
        "required": ["data"],
        "description": description,
    }


def _error_response(description: str, *, retry: bool = False) -> dict[str, Any]:
    """A response that is an error in OpenAI's shape."""
    document: dict[str, Any] = {"description": description}
    if retry:
        document["headers"] = _RETRY_AFTER
    return document | {"content": {"application/json": {"schema": _reference(ErrorEnvelope)}}}


# What a route that generates may answer instead of an answer.
ERROR_RESPONSES: Responses = {
    400: _error_response(
        "A field is malformed, out of range or not supported; the body is not UTF-8, or holds too"
        " many values; or the request does not fit."
    ),
    401: _error_response("The API key is missing or unknown."),
    403: _error_response(
        "The API key has been revoked or is no admin's, or the Host or Origin is refused."
    ),
    404: _error_response("There is no such model."),
    413: _error_response("The body is larger than --max-body-size."),
    429: _error_response("Too many requests wait, or the key's limit is used up.", retry=True),
    500: _error_response("The request failed inside the engine."),
    503: _error_response(
        "The model is loading, the server is shutting down, the engine has failed, or too many"
        " large bodies arrive at once.",
        retry=True,
    ),
}


def errors_shaped(error: type[msgspec.Struct]) -> Responses:
    """``ERROR_RESPONSES`` in the shape of another dialect."""
    content = {"application/json": {"schema": _reference(error)}}
    return {
        status: {**response, "content": content} for status, response in ERROR_RESPONSES.items()
    }


def document_api(
    app: FastAPI,
    types: Sequence[type[msgspec.Struct]],
    gateway: Gateway | None = None,
    *,
    amend: Callable[[dict[str, Any]], None],
) -> None:
    """Replace the document that FastAPI makes.

    Args:
        types: What the routes answer with; errors come on top.
        gateway: Its keys and limits become part of the document.
        amend: Adds what no route says of itself.
    """

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                servers=app.servers,
            )
            _drop_validation_errors(document)
            _, components = msgspec.json.schema_components(
                [*types, ErrorEnvelope], ref_template=_SCHEMA_REF
            )
            document["components"]["schemas"] |= components
            amend(document)
            if gateway is not None and gateway.asks_for_keys:
                _document_keys(document, gateway.open_paths)
            if gateway is not None and gateway.has_limits:
                _document_limits(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = make  # type: ignore[method-assign]  # the way that FastAPI documents


def _document_keys(document: dict[str, Any], open_paths: Collection[str]) -> None:
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
        "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    }
    for path, operations in document["paths"].items():
        if path not in open_paths:
            for operation in operations.values():
                operation["security"] = [{"key": []}, {"header": []}]


def _document_limits(document: dict[str, Any]) -> None:
    """Only POST requests count, and each of their answers has the headers, errors included."""
    for operations in document["paths"].values():
        for response in operations.get("post", {}).get("responses", {}).values():
            response["headers"] = response.get("headers", {}) | LIMIT_HEADERS


def _drop_validation_errors(document: dict[str, Any]) -> None:
    # FastAPI documents a 422 of its own with every route that reads anything; here that is a 400.
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
