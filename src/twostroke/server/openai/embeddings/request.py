"""What ``POST /v1/embeddings`` takes: the request object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import PoolingParams
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.embeddings.pooling_fields import MAX_INPUTS, PoolingFields
from twostroke.server.openai.field_limits import LIMITS, PromptTokens, Texts


class EmbeddingRequest(PoolingFields):
    """Body of ``POST /v1/embeddings``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "messages": (),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {**LIMITS, "dimensions": {"minimum": 1}}

    input: (
        str
        | Annotated[Texts, MaxLen(MAX_INPUTS)]
        | PromptTokens
        | Annotated[list[PromptTokens], MaxLen(MAX_INPUTS), FirstMistake()]
    ) = Field(description="A text, token ids, or several of either.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the bytes of little-endian float32 numbers."
    )
    dimensions: int | None = Field(
        None, description="Keep so many elements of each embedding and normalise it again."
    )

    def inputs(self) -> list[str | list[int]]:
        """The inputs, one for each embedding."""
        if isinstance(self.input, str):
            check_unicode("input", [self.input])
            return [self.input]
        if not self.input:
            raise InvalidRequestError("input is empty", param="input", hint="send at least one")
        check_unicode("input", [text for text in self.input if isinstance(text, str)])
        inputs: list[Any] = [self.input] if isinstance(self.input[0], int) else list(self.input)
        return inputs

    def pooling_params(self) -> PoolingParams:
        return PoolingParams(dimensions=self.dimensions)
