"""Whether a response of success holds the answer to its request, route by route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Fields = dict[str, Any]


def what_is_missing(url: str, request: bytes, body: Any) -> str | None:
    """Why a response holds no answer to its request, or ``None``.

    Args:
        url: One of ``URLS``.
        request: The request's JSON, an object.
        body: The response's JSON.
    """
    if not isinstance(body, dict):
        return "the answer is no object"
    return URLS[url](msgspec.json.decode(request), body)


def _chat(request: Fields, body: Fields) -> str | None:
    return _choices(body, "message", dict, _num_samples(request))


def _completion(request: Fields, body: Fields) -> str | None:
    # A list of numbers is one prompt, of token ids.
    num_samples, num_prompts = _num_samples(request), _num_texts(request.get("prompt"))
    expected = None if num_samples is None or num_prompts is None else num_samples * num_prompts
    return _choices(body, "text", str, expected)


def _choices(body: Fields, name: str, kind: type, expected: int | None) -> str | None:
    choices = body.get("choices")
    if not isinstance(choices, list):
        return "the answer has no choices"
    if not all(isinstance(each, dict) and isinstance(each.get(name), kind) for each in choices):
        return f"a choice of the answer has no {name}"
    return _wrong_number(len(choices), expected, "choices")


def _response(_: Fields, body: Fields) -> str | None:
    status = body.get("status")
    if not isinstance(body.get("output"), list):
        return "the answer has no output"
    if status in ("completed", "incomplete"):
        return None
    error = body.get("error")
    reason = str(error.get("message"))[:300] if isinstance(error, dict) else str(status)[:100]
    return f"the response has not been completed: {reason}"


def _message(_: Fields, body: Fields) -> str | None:
    return None if isinstance(body.get("content"), list) else "the answer has no content"


def _embedding(request: Fields, body: Fields) -> str | None:
    data = body.get("data")
    if not isinstance(data, list):
        return "the answer has no data"
    kinds = (list, str)  # numbers, or base64
    if not all(
        isinstance(each, dict) and isinstance(each.get("embedding"), kinds) for each in data
    ):
        return "an entry of the answer has no embedding"
    texts = request.get("input")
    return _wrong_number(len(data), _num_texts(texts) if texts is not None else 1, "vectors")


def _ranking(request: Fields, body: Fields) -> str | None:
    results, documents, top = body.get("results"), request.get("documents"), request.get("top_n")
    if not isinstance(results, list):
        return "the answer has no results"
    if not all(
        isinstance(each, dict) and _is_number(each.get("relevance_score")) for each in results
    ):
        return "a result of the answer has no relevance_score"
    expected = len(documents) if isinstance(documents, list) else None
    if expected is not None and type(top) is int and top > 0:
        expected = min(expected, top)
    return _wrong_number(len(results), expected, "results")


def _scores(request: Fields, body: Fields) -> str | None:
    data = body.get("data")
    if not isinstance(data, list):
        return "the answer has no data"
    if not all(isinstance(each, dict) and _is_number(each.get("score")) for each in data):
        return "an entry of the answer has no score"
    names = ("text_2", "documents", "items", "data_2")
    given = [request[name] for name in names if request.get(name) is not None]
    return _wrong_number(len(data), _num_texts(given[0]) if given else None, "scores")


def _wrong_number(number: int, expected: int | None, what: str) -> str | None:
    if expected is None or number == expected:
        return None
    return f"the answer has {number} {what} instead of {expected}"


def _num_samples(request: Fields) -> int | None:
    """How many answers a request asks for; ``None`` if its field is not what it should be."""
    num_samples = request.get("n")
    num_samples = 1 if num_samples is None else num_samples
    return num_samples if type(num_samples) is int else None


def _num_texts(value: Any) -> int:
    """How many texts there are in a text, a list of them, or token ids."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return len(value)
    return 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# The routes of a batch. Of those with several paths, the ones of the API document.
URLS: Mapping[str, Callable[[Fields, Fields], str | None]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/v1/embeddings": _embedding,
    "/v1/rerank": _ranking,
    "/v1/score": _scores,
}
