"""Errors of dialects that say little more than a sentence: Ollama's, TEI's and Cohere's.

As of Anthropic's, the path of a request decides the shape (``anthropic_shape.py``).
"""

from __future__ import annotations

from msgspec import Struct

OLLAMA_ROOT = "/api/"
TEI_PATH = "/embed"
COHERE_PATH = "/v2/embed"
# Source: `ErrorType` of text-embeddings-inference.
_TEI_TYPES = {
    400: "Validation",
    413: "Validation",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
}


class OllamaError(Struct):
    error: str


class TeiError(Struct):
    error: str
    error_type: str


class CohereError(Struct):
    message: str


def plain_error(path: str, message: str, status: int) -> Struct | None:
    """An error in the shape that a path's clients expect; ``None`` if that is another."""
    if path.startswith(OLLAMA_ROOT):
        return OllamaError(message)
    if path == TEI_PATH:
        return TeiError(message, _TEI_TYPES.get(status, "Validation"))
    return CohereError(message) if path == COHERE_PATH else None
