"""What ``POST /v1/embeddings`` and ``POST /pooling`` take: the request objects."""

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

_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "messages": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
}


class VectorFields(PoolingFields):
    """What the routes of embeddings and of pooled states share."""

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
        None, description="Keep this many elements of each embedding and normalise it again."
    )

    @property
    def is_base64(self) -> bool:
        return self.encoding_format == "base64"

    def inputs(self) -> list[str | list[int]]:
        """The inputs, one for each vector."""
        if isinstance(self.input, str):
            check_unicode("input", [self.input])
            return [self.input]
        if not self.input:
            raise InvalidRequestError("input is empty", param="input", hint="send at least one")
        check_unicode("input", [text for text in self.input if isinstance(text, str)])
        inputs: list[Any] = [self.input] if isinstance(self.input[0], int) else list(self.input)
        return inputs


class EmbeddingRequest(VectorFields):
    """Body of ``POST /v1/embeddings``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED

    def pooling_params(self) -> PoolingParams:
        return PoolingParams(dimensions=self.dimensions)


class PoolingRequest(VectorFields):
    """Body of ``POST /pooling``, whose fields are vLLM's."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_REFUSED,
        "data": (),
        "truncation_side": ("right",),
        "padding": ("do_not_pad",),
    }

    task: (
        Literal["embed", "classify", "token_embed", "token_classify", "encode", "score", "plugin"]
        | None
    ) = Field(
        None,
        description=(
            "embed: embeddings; classify: the score of a ranking model's head. Others are refused:"
            " no model gives states of single tokens here, which is what no task asks for."
        ),
    )
    use_activation: bool | None = Field(
        None,
        description=(
            "Of embed: whether vectors have length 1; by default as the model's makers chose. Of"
            " classify: only true."
        ),
    )
    normalize: bool | None = Field(None, description="Older name of use_activation.")

    def pooling_params(self) -> PoolingParams:
        """What the engine is asked.

        Raises:
            InvalidRequestError: The task is none of these, or does not go with other fields.
        """
        if self.task not in ("embed", "classify"):
            wanted = "without a task" if self.task is None else f"of the task {self.task}"
            raise InvalidRequestError(
                f"states of single tokens, which requests {wanted} ask for, are not given here",
                param="task",
                hint="send task: embed for one vector a text, or classify for a ranking model's"
                " score",
            )
        activation = self.normalize if self.use_activation is None else self.use_activation
        if self.task == "embed":
            return PoolingParams(dimensions=self.dimensions, normalise=activation)
        for param, given in (
            ("dimensions", self.dimensions is not None),
            ("use_activation", activation is False),
        ):
            if given:
                raise InvalidRequestError(
                    f"{param} does not go with the task classify", param=param, hint="leave it out"
                )
        return PoolingParams(task="score")
