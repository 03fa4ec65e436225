"""The tools of Anthropic's requests, in its form and in that of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.server.anthropic.known_tools import (
    KnownTool,
    is_server_run,
    known_tool,
    why_refused,
)
from twostroke.server.anthropic.names import names_of_tools
from twostroke.server.anthropic.source_fields import CACHE_ALWAYS, AnthropicFields
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.http.validation_errors import explained
from twostroke.server.openai.tools.request_tools import (
    MAX_TOOLS,
    NAME_PATTERN,
    FunctionFields,
    ToolFields,
    check_tools,
)


def _check_type(kind: str) -> str:
    if kind != "custom" and known_tool(kind) is None and not is_server_run(kind):
        raise explained(*why_refused(kind))
    return kind


class AnthropicToolFields(AnthropicFields):
    """A tool that the client runs: its own, or one whose type stands for a documented input.

    Those that Anthropic's servers run are ignored.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "cache_control": CACHE_ALWAYS,
        "eager_input_streaming": "arguments are streamed as they come",
        "input_examples": "chat templates have no place for them",
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
    }

    type: Annotated[str, AfterValidator(_check_type)] | None = Field(
        None, description="custom, or such as bash_20250124, text_editor_20250728."
    )
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(
        None, description="JSON schema of the input, an object; of custom tools alone."
    )
    strict: bool | None = Field(None, description="Calls follow the schema.")
    max_characters: int | None = Field(
        None, ge=1, description="What text_editor_20250728 shows of a file."
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        known = self.known
        if known is None and not self.runs_elsewhere and self.input_schema is None:
            how = "null" if "input_schema" in self.model_fields_set else "missing"
            raise PydanticCustomError(
                "missing_field", "missing", {"field": "input_schema", "how": how}
            )
        if known is not None and self.name != known.name:
            raise explained(f"a tool of the type {self.type} must have the name {known.name}")
        if known is not None and self.input_schema is not None:
            raise explained(f"a tool of the type {self.type} has no input_schema", "leave it out")
        if self.max_characters is not None and self.type != "text_editor_20250728":
            raise explained("max_characters is for text_editor_20250728", "leave it out")
        return self

    @property
    def known(self) -> KnownTool | None:
        """What its type stands for; ``None``: it is the client's own."""
        return None if self.type is None else known_tool(self.type, self.max_characters)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether Anthropic's servers would run it."""
        return self.type is not None and is_server_run(self.type)

    def dropped_fields(self) -> list[str]:
        return [self.type or ""] if self.runs_elsewhere else super().dropped_fields()

    def as_function(self) -> ToolFields:
        """The tool as a function of a chat."""
        known = self.known
        function = FunctionFields.model_construct(
            _fields_set={"name", "description", "parameters"},
            name=self.name,
            description=self.description or (known.description if known is not None else None),
            parameters=dict(known.parameters) if known is not None else self.input_schema,
            strict=self.strict,
        )
        return ToolFields.model_construct(type="function", function=function)


def _without_settings(tools: Any) -> Any:
    """What is said of tools that are not there is not looked at."""
    if not isinstance(tools, list):
        return tools
    return [
        {key: tool[key] for key in ("type", "name") if key in tool}
        if _runs_elsewhere(tool)
        else tool
        for tool in tools
    ]


def _runs_elsewhere(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and is_server_run(kind)


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


AnthropicTools = Annotated[
    list[AnthropicToolFields],
    MaxLen(MAX_TOOLS),
    FirstMistake(),
    BeforeValidator(_without_settings),
]


def chat_tools(tools: Sequence[AnthropicToolFields]) -> dict[int, ToolFields]:
    """Tools that the client runs, as functions of a chat, by their places in the request.

    Raises:
        InvalidRequestError: They cannot be told apart, or are too large.
    """
    functions = {
        place: tool.as_function() for place, tool in enumerate(tools) if not tool.runs_elsewhere
    }
    with names_of_tools(list(functions)).applied():
        check_tools(list(functions.values()), None)
    return functions
