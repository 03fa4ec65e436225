"""The tools of Anthropic's requests, in its form and in that of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.anthropic.block_fields import AnthropicFields
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.openai.tools.request_tools import (
    MAX_TOOLS,
    NAME_PATTERN,
    FunctionFields,
    ToolFields,
    check_tools,
)


class AnthropicToolFields(AnthropicFields):
    """A tool of the client's own; there are no others."""

    ignored: ClassVar[Mapping[str, str]] = {
        "cache_control": "prefixes are cached as long as there is room",
        "eager_input_streaming": "arguments are streamed as they come",
        "input_examples": "chat templates have no place for them",
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
    }

    type: Literal["custom"] | None = None
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of the input, an object.")
    strict: bool | None = Field(None, description="Calls follow the schema.")


class AnthropicToolChoice(AnthropicFields):
    """Whether the answer may or must call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Of the one tool that must be called.")
    disable_parallel_tool_use: bool | None = Field(
        None, description="True: the answer has one call at most."
    )

    @model_validator(mode="after")
    def _names_its_tool(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError(
                "missing_field", "missing", {"field": "name", "how": "missing"}
            )
        return self


AnthropicTools = Annotated[list[AnthropicToolFields], MaxLen(MAX_TOOLS), FirstMistake()]


def chat_tools(tools: Sequence[AnthropicToolFields]) -> list[ToolFields]:
    """Tools as functions of a chat.

    Raises:
        InvalidRequestError: They cannot be told apart, or are too large.
    """
    functions = [
        ToolFields.model_construct(
            type="function",
            function=FunctionFields.model_construct(
                _fields_set={"name", "description", "parameters"},
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in tools
    ]
    try:
        check_tools(functions, None)
    except InvalidRequestError as error:
        message, param = (
            (text or "").replace("].function", "]") for text in (error.message, error.param)
        )
        raise InvalidRequestError(message, param=param, hint=error.hint) from error
    return functions
