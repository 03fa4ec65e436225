"""A look inside the embedded model while it reads a short text: question and answer as values."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from twostroke.core.errors import InvalidRequestError

MODEL = "pilot"
MAX_TOKENS = 96  # attention is that many numbers squared, for each head of each layer
MAX_CHARACTERS = 400
LIKELIEST = 8
WHOLE = 1000  # what the weights of one token add up to, but for rounding

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class AskedText(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/inspect/inside``: a text, or the tokens of one."""

    text: Annotated[str, Meta(max_length=MAX_CHARACTERS)] = ""
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)] = []


class ReadToken(msgspec.Struct):
    """A token of the text; bytes that are no character are escaped."""

    id: int
    text: str


class LikelyToken(msgspec.Struct):
    """A token that may come next."""

    text: str
    logit: float
    probability: float


class SeenLayer(msgspec.Struct):
    """One layer.

    Attributes:
        attention: By head, how much each token looks at those up to itself, in thousandths: a row
            of one number for the first token, of two for the second, one row after the other.
        likeliest: What would come next if this were the last layer.
    """

    attention: list[list[int]]
    likeliest: list[LikelyToken]


class InsideText(msgspec.Struct):
    """Answer of ``POST /v1/inspect/inside``.

    Attributes:
        embedding: The vector that the last token begins with.
    """

    model: str
    tokens: list[ReadToken]
    embedding: list[float]
    layers: list[SeenLayer]


def read_asked_text(body: bytes) -> AskedText:
    """The text that a body asks about.

    Raises:
        InvalidRequestError: A field is unknown or too long, or there is not one of them.
    """
    try:
        asked = msgspec.json.decode(body, type=AskedText)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"the body is no question: {error}", hint='such as {"text": "The sky is"}'
        ) from error
    if bool(asked.text) == bool(asked.tokens):
        raise InvalidRequestError(
            "one of text and tokens is needed, and not both",
            param="text",
            hint='such as {"text": "The sky is"}',
        )
    return asked
