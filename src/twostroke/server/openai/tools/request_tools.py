"""The tools of a request: functions that the model may call, and whether it must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MaxLen, MinLen
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.calls.call import CallableTool
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.field_limits import TOOL_NAME_PATTERN, OpenAIFields
from twostroke.server.openai.tools.custom_tools import CustomFields
from twostroke.text.json_values import json_pieces

MAX_TOOLS = 512
MAX_TOOL_CHARS = 1_000_000  # of all tools together, as JSON
NAME_PATTERN = TOOL_NAME_PATTERN


class FunctionFields(OpenAIFields):
    """A function that the model may call."""

    ignores_unknown: ClassVar[bool] = True

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON schema of the arguments, an object; by default there are none."
    )
    strict: bool | None = Field(
        None, description="Calls that the model chooses to make follow the schema."
    )


class ToolFields(OpenAIFields):
    """One tool: a function, or a custom one, which then is a function of its input as well."""

    ignores_unknown: ClassVar[bool] = True
    nested: ClassVar[tuple[str, ...]] = ("function", "custom")

    type: Literal["function", "custom"]
    function: FunctionFields = Field(FunctionFields.model_construct(name=""))
    custom: CustomFields | None = None

    @model_validator(mode="after")
    def _has_its_kind(self) -> Self:
        require_kind(self, self.type)
        if self.type == "custom" and self.custom is not None:
            self.function = FunctionFields(**self.custom.as_function())
        return self

    def as_callable(self, place: int) -> CallableTool:
        """The tool as answers may call it; ``place`` is its own among those of the request."""
        function, path = self.function, f"tools[{place}]"
        return CallableTool(
            name=function.name,
            parameters=function.parameters,
            path=f"{path}.{'function.parameters' if self.custom is None else 'custom'}",
            strict=bool(function.strict),
            expression_path=f"{path}.custom.format" if self.custom and self.custom.format else None,
        )


class NamedTool(OpenAIFields):
    ignores_unknown: ClassVar[bool] = True

    name: str


class AllowedTool(OpenAIFields):
    """One of the tools that may be called."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["function", "custom"]
    function: NamedTool | None = None
    custom: NamedTool | None = None

    @model_validator(mode="after")
    def _has_its_kind(self) -> Self:
        require_kind(self, self.type)
        return self

    @property
    def name(self) -> str:
        tool = self.function if self.type == "function" else self.custom
        return "" if tool is None else tool.name


class AllowedTools(OpenAIFields):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], MinLen(1), MaxLen(MAX_TOOLS), FirstMistake()]


class ToolChoiceFields(OpenAIFields):
    """The one tool that the answer must call, or those that it may."""

    type: Literal["function", "custom", "allowed_tools"]
    function: NamedTool | None = None
    custom: NamedTool | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _has_its_kind(self) -> Self:
        require_kind(self, self.type)
        return self

    @property
    def name(self) -> str | None:
        """The name of the one tool that must be called."""
        tool = self.function if self.type == "function" else self.custom
        return None if self.type == "allowed_tools" or tool is None else tool.name

    @property
    def mode(self) -> Literal["auto", "required"]:
        return "required" if self.allowed_tools is None else self.allowed_tools.mode

    @property
    def names(self) -> set[str]:
        """The names of the tools that may be called."""
        if self.allowed_tools is None:
            return {self.name or ""}
        return {tool.name for tool in self.allowed_tools.tools}


Tools = Annotated[list[ToolFields], MaxLen(MAX_TOOLS), FirstMistake()]
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceFields


def require_kind(fields: OpenAIFields, kind: str) -> None:
    """Raise pydantic's error where what a ``type`` names is not there."""
    if kind not in fields.model_fields_set or getattr(fields, kind) is None:
        raise PydanticCustomError("missing_field", "missing", {"field": kind, "how": "missing"})


def check_tools(tools: Sequence[ToolFields], choice: ToolChoice | None) -> None:
    """Refuse tools that cannot be told apart, and a choice of one that is not there."""
    names: set[str] = set()
    num_chars = 0
    for i, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            raise InvalidRequestError(
                f"tools[{i}].function.name is that of another tool: {name}",
                param=f"tools[{i}].function.name",
                hint="give each function its own name",
            )
        names.add(name)
        num_chars += _num_chars(tool.function, f"tools[{i}].function", MAX_TOOL_CHARS - num_chars)
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise InvalidRequestError(
            "tool_choice needs tools", param="tool_choice", hint="send tools, or leave it out"
        )
    if isinstance(choice, ToolChoiceFields) and (missing := choice.names - names):
        raise InvalidRequestError(
            f"tool_choice names {min(missing)[:128]!a}, which is not among the tools",
            param="tool_choice",
            hint=f"there are {', '.join(sorted(names)[:20])}",
        )


def _num_chars(function: FunctionFields, param: str, most: int) -> int:
    """Characters of a function's JSON; it refuses more than ``most``, and what is no Unicode."""
    num_chars = 0
    try:
        for piece in json_pieces([function.description, function.parameters]):
            check_unicode(param, [piece])
            num_chars += len(piece)
            if num_chars > most:
                raise InvalidRequestError(
                    f"tools hold more than {MAX_TOOL_CHARS} characters",
                    param="tools",
                    hint="send fewer or shorter descriptions",
                )
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
    return num_chars


def template_tools(tools: Iterable[ToolFields]) -> list[dict[str, Any]]:
    """Tools as chat templates take them, with the fields that the request has.

    Not by ``model_dump``, which copies parameters, and holds all threads up meanwhile.
    """
    return [{"type": "function", "function": _given_fields(tool.function)} for tool in tools]


def _given_fields(function: FunctionFields) -> dict[str, Any]:
    values = {name: getattr(function, name) for name in FunctionFields.model_fields}
    return {
        name: value
        for name, value in values.items()
        if name in function.model_fields_set and value is not None
    }
