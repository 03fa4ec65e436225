"""The tools of a request: functions, functions within namespaces, and what OpenAI would run.

The model knows a function of a namespace by a joined name; its calls come back with both names
apart, as clients such as Codex expect them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import MaxLen
from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.openai.field_limits import OpenAIFields
from twostroke.server.openai.tools.request_tools import MAX_TOOLS, NAME_PATTERN

_HOSTED_KINDS = (
    *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation"),
    *("mcp", "tool_search"),
)
_HOSTED = re.compile(rf"({'|'.join(_HOSTED_KINDS)})(_\d{{4}}_\d{{2}}_\d{{2}})?")
_JOINT = "__"
_MAX_NAME = 128


class FunctionTool(OpenAIFields):
    """A function that the model may call."""

    ignores_unknown: ClassVar[bool] = True

    type: Literal["function"]
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON schema of the arguments, an object; by default there are none."
    )
    strict: bool | None = Field(None, description="As in chat.")

    def shown(self) -> dict[str, Any]:
        """The tool in the form that the response shows."""
        fields = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in fields}


class NamespaceTool(OpenAIFields):
    """Functions under a name of their own, such as those of an MCP server."""

    ignores_unknown: ClassVar[bool] = True
    nested: ClassVar[tuple[str, ...]] = ("tools",)

    type: Literal["namespace"]
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = Field(None, description="Written before that of its first function.")
    tools: Annotated[list[FunctionTool], MaxLen(MAX_TOOLS), FirstMistake()]

    def shown(self) -> dict[str, Any]:
        """The namespace in the form that the response shows."""
        tools = [tool.shown() for tool in self.tools]
        return {"type": self.type, "name": self.name, "description": self.description} | {
            "tools": tools
        }


class HostedTool(OpenAIFields):
    """A tool that OpenAI's servers would run: it is not there, and named as ignored."""

    ignores_unknown: ClassVar[bool] = True

    type: str = Field(pattern=f"^{_HOSTED.pattern}$")

    def dropped_fields(self) -> list[str]:
        return [self.type]


def _tag(data: Any) -> str:
    """A union's tag, in brackets: those are left out of the names of fields."""
    kind = data.get("type") if isinstance(data, dict) else getattr(data, "type", None)
    if kind == "namespace":
        return "tool[namespace]"
    if isinstance(kind, str) and _HOSTED.fullmatch(kind):
        return "tool[hosted]"
    return "tool[function]"


def _check_kind(data: Any) -> Any:
    """Refuse a tool that is none of those that are taken."""
    kind = data.get("type") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind != "function":
        how = f"{kind[:40]!a}, a tool that this server does not have"
        hint = f"send function or namespace; {', '.join(_HOSTED_KINDS)} are taken, and dropped"
        raise PydanticCustomError(
            "missing_field", "unknown tool", {"field": "type", "how": how, "hint": hint}
        )
    return data


Tool = Annotated[
    Annotated[FunctionTool, BeforeValidator(_check_kind), Tag("tool[function]")]
    | Annotated[NamespaceTool, Tag("tool[namespace]")]
    | Annotated[HostedTool, Tag("tool[hosted]")],
    Discriminator(_tag),
]
Tools = Annotated[list[Tool], MaxLen(MAX_TOOLS), FirstMistake()]


class FunctionChoice(OpenAIFields):
    """The one tool that the answer must call."""

    type: Literal["function"]
    name: str
    namespace: str | None = Field(None, description="Of a function within one.")


AllowedTool = Annotated[
    Annotated[FunctionChoice, Tag("tool[function]")] | Annotated[HostedTool, Tag("tool[hosted]")],
    Discriminator(lambda data: "tool[hosted]" if "hosted" in _tag(data) else "tool[function]"),
]


class AllowedTools(OpenAIFields):
    """Only some of the tools may be called; those that OpenAI would run are dropped here, too."""

    nested: ClassVar[tuple[str, ...]] = ("tools",)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], MaxLen(MAX_TOOLS), FirstMistake()]

    @property
    def functions(self) -> list[FunctionChoice]:
        return [tool for tool in self.tools if isinstance(tool, FunctionChoice)]


class NamedFunction(NamedTuple):
    """A function as the model is told of it.

    Attributes:
        name: Its joined name.
        place: Where the request has it.
        namespace: Its namespace, ``tool`` its fields.
    """

    name: str
    place: str
    namespace: NamespaceTool | None
    tool: FunctionTool

    def as_chat(self) -> dict[str, Any]:
        """The function in chat's nested form."""
        description = self.tool.description
        if self.namespace is not None and self.namespace.tools[0] is self.tool:
            of_all = self.namespace.description
            texts = (f"{self.namespace.name}: {of_all}" if of_all else None, description)
            description = "\n\n".join(text for text in texts if text)
        fields = {
            "name": self.name,
            "description": description,
            "parameters": self.tool.parameters,
            "strict": self.tool.strict,
        }
        function = {key: value for key, value in fields.items() if value is not None}
        return {"type": "function", "function": function}


class CalledName(NamedTuple):
    """What a call is of, as the client knows it."""

    namespace: str
    name: str


def joined_name(namespace: str | None, name: str) -> str:
    """What the model calls a function: ``mcp__weather`` and ``get`` are ``mcp__weather__get``."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(_JOINT) else _JOINT}{name}"


def named_functions(tools: Sequence[Tool]) -> list[NamedFunction]:
    """All functions, those of namespaces too.

    Raises:
        InvalidRequestError: A joined name is longer than any name may be.
    """
    functions = []
    for i, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            functions.append(NamedFunction(tool.name, f"tools[{i}]", None, tool))
        elif isinstance(tool, NamespaceTool):
            functions += [
                NamedFunction(
                    joined_name(tool.name, inner.name), f"tools[{i}].tools[{j}]", tool, inner
                )
                for j, inner in enumerate(tool.tools)
            ]
    for name, place, *_ in functions:
        if len(name) > _MAX_NAME:
            raise InvalidRequestError(
                f"{place}.name makes {len(name)} characters with its namespace, of which"
                f" {_MAX_NAME} are known",
                param=f"{place}.name",
                hint="give shorter names",
            )
    return functions


def called_names(functions: Sequence[NamedFunction]) -> Mapping[str, CalledName]:
    """The functions of namespaces by the names that the model calls them."""
    return {
        name: CalledName(namespace.name, tool.name)
        for name, _, namespace, tool in functions
        if namespace is not None
    }


def allowed_functions(
    functions: Sequence[NamedFunction], choice: AllowedTools
) -> list[NamedFunction]:
    """The functions that may be called.

    Raises:
        InvalidRequestError: The choice names one that is not there.
    """
    names = {joined_name(tool.namespace, tool.name) for tool in choice.functions}
    if missing := names - {function.name for function in functions}:
        raise InvalidRequestError(
            f"tool_choice names {min(missing)[:128]!a}, which is not among the tools",
            param="tool_choice",
            hint="name functions of tools",
        )
    return [function for function in functions if function.name in names]
