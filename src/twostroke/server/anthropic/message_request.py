"""What ``POST /v1/messages`` and ``POST /v1/messages/count_tokens`` take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import MAX_STOP_STRINGS, SamplingParams
from twostroke.server.anthropic.block_fields import Messages
from twostroke.server.anthropic.names import NAMES
from twostroke.server.anthropic.source_fields import CACHE_ALWAYS, AnthropicFields, TextFields
from twostroke.server.anthropic.tool_fields import (
    AnthropicToolChoice,
    AnthropicTools,
    chat_tools,
)
from twostroke.server.foreign_fields import Counterpart
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.http.errors import ThreadUnsupportedError
from twostroke.server.openai.generation_fields import DEADLINE, Deadline
from twostroke.server.openai.tools.request_tools import ToolFields

MAX_LABEL_LENGTH = 512
_ONE_SERVER = "there is one kind of service"


class ThinkingFields(AnthropicFields):
    """Whether the model thinks before it answers, where its chat template lets clients choose."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of the thought, whose end is then forced, where models think.",
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="Omitted: blocks of thoughts have no text."
    )


class OutputFields(AnthropicFields):
    """How much effort goes into an answer, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="For chat templates that read reasoning_effort; others ignore it."
    )
    format: dict[str, Any] | None = Field(None, description="The form of the answer.")


class MetadataFields(AnthropicFields):
    """What the client calls its end user."""

    ignores_unknown: ClassVar[bool] = True

    user_id: str | None = Field(
        None,
        max_length=MAX_LABEL_LENGTH,
        description="Shown in the request log and in step events.",
    )


def _thinking_type(enabled: Any) -> Any:
    """``thinking.type`` for the variable of templates that Qwen's clients send."""
    if not isinstance(enabled, bool):
        return enabled
    return "enabled" if enabled else "disabled"


class PromptFields(AnthropicFields):
    """The fields that make a prompt."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        "billing_policy": "nothing is billed",
        "cache_control": CACHE_ALWAYS,
        "context_management": "the conversation is taken as it is",
        "diagnostics": "answers have none",
        "fallback_credit_token": "nothing is billed",
        "fallbacks": "there is one model",
        "inference_geo": _ONE_SERVER,
        "service_tier": _ONE_SERVER,
        "speed": _ONE_SERVER,
        "user_profile_id": "requests belong to API keys",
        "workspace_id": "requests belong to API keys",
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "compaction": (),
        "container": (),
        "mcp_servers": ([],),
    }
    counterparts: ClassVar[Mapping[str, Counterpart]] = {
        "enable_thinking": Counterpart(
            ("thinking", "type"),
            {"type": "boolean"},
            _thinking_type,
        )
    }
    instead: ClassVar[Mapping[str, str]] = {
        "chat_template_kwargs": "send thinking, or output_config.effort",
        "json_schema": "send output_config.format",
        "reasoning_effort": "send output_config.effort",
        "response_format": "send output_config.format",
        "thinking_budget": "send thinking.budget_tokens",
        "thinking_token_budget": "send thinking.budget_tokens",
    }
    nested: ClassVar[tuple[str, ...]] = (
        "system",
        "messages",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
    )

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    system: str | Annotated[list[TextFields], FirstMistake()] | None = Field(
        None, description="The system prompt."
    )
    messages: Messages = Field(
        description="Turns; the answer goes on with the last one if that is the assistant's."
    )
    tools: AnthropicTools | None = Field(None, description="What the answer may call.")
    tool_choice: AnthropicToolChoice | None = Field(
        None, description="By default auto: the model decides."
    )
    thinking: ThinkingFields | None = Field(
        None, description="By default the chat template decides."
    )
    output_config: OutputFields | None = None
    thread: dict[str, Any] | None = Field(
        None, description="Refused with a code by which clients send the whole conversation."
    )

    def check_thread(self) -> None:
        """Refuse to hold a conversation between requests."""
        if self.thread is not None:
            raise ThreadUnsupportedError(
                "this server holds no conversations",
                param="thread",
                hint="send the whole conversation, without thread",
            )

    def callable_tools(self) -> dict[int, ToolFields] | None:
        """Tools that the answer may call, as functions of a chat, by their places in ``tools``.

        ``None``: there are none.
        """
        tools = chat_tools(self.tools or ())
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool"):
            self._check_demanded(choice, [tool.function.name for tool in tools.values()])
        return None if choice is not None and choice.type == "none" else tools or None

    def _check_demanded(self, choice: AnthropicToolChoice, names: Sequence[str]) -> None:
        """Refuse a choice among the tools of these names that cannot be made."""
        elsewhere = [tool.name for tool in self.tools or () if tool.runs_elsewhere]
        if choice.name in elsewhere or (elsewhere and not names):
            raise InvalidRequestError(
                f"tool_choice demands {choice.name or elsewhere[0]}, which this server cannot run",
                param="tool_choice",
                hint="leave it out, or send tools that the client runs",
            )
        if not names:
            raise InvalidRequestError(
                "tool_choice needs tools", param="tool_choice", hint="send tools, or leave it out"
            )
        if choice.type == "tool" and choice.name not in names:
            raise InvalidRequestError(
                f"tool_choice names {choice.name!a}, which is not among the tools",
                param="tool_choice.name",
                hint=f"there are {', '.join(sorted(names)[:20])}",
            )

    @property
    def max_calls(self) -> int | None:
        """The most calls of an answer; ``None``: as many as there are."""
        return 1 if self.tool_choice and self.tool_choice.disable_parallel_tool_use else None


class MessageRequest(PromptFields):
    """Body of ``POST /v1/messages``."""

    nested: ClassVar[tuple[str, ...]] = (*PromptFields.nested, "metadata")

    max_tokens: int = Field(
        description=(
            "Most tokens of the answer; 0: only cache the prompt. The answer also ends where the"
            " model's context does."
        )
    )
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[str], MaxLen(MAX_STOP_STRINGS), FirstMistake()] | None = None
    stream: bool | None = None
    metadata: MetadataFields | None = None
    deadline_ms: Deadline | None = Field(None, description=DEADLINE)

    @property
    def labels(self) -> dict[str, str]:
        """What the client calls its end user."""
        name = None if self.metadata is None else self.metadata.user_id
        return {"user_id": name} if name is not None else {}

    @property
    def thinking_budget(self) -> int | None:
        """The most tokens of a thought, if they are bounded."""
        thinking = self.thinking
        return None if thinking is None or thinking.type == "disabled" else thinking.budget_tokens

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters: as given, else ``defaults``."""
        check_unicode("stop_sequences", self.stop_sequences or ())
        check_unicode("metadata.user_id", self.labels.values())
        values: dict[str, Any] = {**defaults, "max_tokens": self.max_tokens or 1}
        for name in ("temperature", "top_p", "top_k"):
            if (value := getattr(self, name)) is not None:
                values[name] = value
        with NAMES.applied():
            return SamplingParams(**values, stop=tuple(self.stop_sequences or ()))


class CountTokensRequest(PromptFields):
    """Body of ``POST /v1/messages/count_tokens``."""
