"""What ``POST /v1/chat/completions`` takes: the request object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from pydantic import ConfigDict, Field, model_validator

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.generation.encoding import MAX_CONTEXT_CHARS
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.chat_messages import ContentPart, Messages, num_chars
from twostroke.server.openai.field_limits import MAX_DOCUMENTS, MAX_MESSAGE_PARTS, OpenAIFields
from twostroke.server.openai.generation_fields import GenerationFields
from twostroke.server.openai.tools.request_tools import (
    ToolChoice,
    ToolChoiceFields,
    ToolFields,
    Tools,
    check_tools,
)
from twostroke.text.context_material import ContextOptions, DocumentOrder
from twostroke.text.context_report import Strategy
from twostroke.text.json_values import is_large
from twostroke.text.tokenizer import LONG_TEXT


class DocumentFields(OpenAIFields):
    """Something retrieved for the model to read; a string is a document with that text."""

    model_config = ConfigDict(json_schema_extra={"type": ["string", "object"], "minLength": 1})

    text: str = Field(min_length=1)
    id: str | int | None = Field(
        None, description="How prompt and usage call it; by default its place, from 1."
    )
    title: str | None = None
    score: float | None = Field(
        None,
        allow_inf_nan=False,
        description="More is better. All documents have one, or the server ranks them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"text": data} if isinstance(data, str) else data


class ContextFields(OpenAIFields):
    """How the prompt is put together when not everything fits."""

    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of the prompt; by default the model's context less max_tokens.",
    )
    strategy: Strategy | None = Field(None, description="What goes first; by default drop_oldest.")
    document_order: DocumentOrder | None = Field(
        None, description="By default given: as in the request."
    )
    ranker: Literal["bm25", "model"] | None = Field(
        None,
        description=(
            "What scores documents that come without scores. By default the server's: its model, if"
            " it was started with --context-ranker, or BM25 where that fails; else BM25."
        ),
    )
    min_score: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Documents below it go before anything else; by default those with 0.",
    )

    def options(self) -> ContextOptions:
        """The options, with the defaults where nothing is said."""
        return ContextOptions(
            strategy=self.strategy or "drop_oldest",
            document_order=self.document_order or "given",
            min_score=self.min_score,
        )


class PredictionFields(OpenAIFields):
    """What the client expects the answer to be: it comes sooner where that is right."""

    type: Literal["content"]
    content: (
        Annotated[str, MaxLen(MAX_CONTEXT_CHARS)]
        | Annotated[list[ContentPart], MaxLen(MAX_MESSAGE_PARTS), FirstMistake()]
    )

    def text(self) -> str:
        content = self.content
        texts = [content] if isinstance(content, str) else [part.content for part in content]
        check_unicode("prediction.content", texts)
        return "".join(texts)


class ChatCompletionRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "moderation": (),
        "echo": (False,),
        "use_beam_search": (False,),
        "chat_template": (),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "functions": 'send each in tools, as {"type": "function", "function": {...}}',
        "function_call": "send tool_choice, and the functions in tools",
    }
    nested: ClassVar[tuple[str, ...]] = ("messages", "stream_options", "tools")

    messages: Messages
    max_completion_tokens: int | None = Field(None, description="Newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="Needs logprobs.")
    add_generation_prompt: bool | None = Field(
        None, description="Open the assistant's turn; true by default."
    )
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message instead of a new one."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the model's BOS; false by default: templates do."
    )
    tools: Tools | None = Field(None, description="Functions that the answer may call.")
    tool_choice: ToolChoice | None = Field(
        None, description="By default auto where there are tools: the model decides."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="False: the answer has one call at most."
    )
    include_reasoning: bool | None = Field(
        None, description="False leaves the model's thoughts out of the answer."
    )
    reasoning_effort: str | None = Field(
        None, description="For chat templates that read it; others ignore it."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="Variables of the chat template; those that it does not read are ignored.",
    )
    prediction: PredictionFields | None = Field(
        None,
        description=(
            "Expected text of the answer, from which a server that speculates with n-grams or"
            " suffixes drafts. The answer is the same with it and without."
        ),
    )
    documents: Annotated[list[DocumentFields], MaxLen(MAX_DOCUMENTS), FirstMistake()] | None = (
        Field(
            None,
            description=(
                "Texts or objects, written after the system prompt or where the template has them."
            ),
        )
    )
    context: ContextFields | None = Field(
        None, description="Shorten the prompt to fit; else what is too long fails."
    )

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    def offered_tools(self) -> dict[int, ToolFields]:
        """Tools that the prompt names, by place; as in vLLM, none where none may be called."""
        choice = self.tool_choice
        allowed = choice.allowed_tools if isinstance(choice, ToolChoiceFields) else None
        names = allowed and {tool.name for tool in allowed.tools}
        tools = enumerate(self.tools or ()) if self.may_call else ()
        return {i: tool for i, tool in tools if names is None or tool.function.name in names}

    @property
    def is_assembled(self) -> bool:
        """Whether its prompt is put together so that it fits."""
        return bool(self.documents) or self.context is not None

    @property
    def custom_names(self) -> frozenset[str]:
        """Names of the custom tools."""
        return frozenset(tool.function.name for tool in self.tools or () if tool.custom is not None)

    @cached_property
    def is_large(self) -> bool:
        """Whether it takes long to look through."""
        functions = [tool.function for tool in self.tools or ()]
        texts = [(function.description, function.parameters) for function in functions]
        message_texts = [message.texts() for message in self.messages]
        is_long = num_chars(self.messages) > LONG_TEXT  # calls and thoughts, too
        called = [message.tool_calls for message in self.messages]
        values = [texts, message_texts, called, self.chat_template_kwargs]
        return is_long or bool(self.documents) or is_large(values)

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters of a chat; without ``max_tokens`` the answer may fill the context."""
        self.check_combinations()
        check_tools(self.tools or (), self.tool_choice)
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            if max_tokens is not None and max_tokens != self.max_completion_tokens:
                message = "max_tokens and max_completion_tokens differ"
                raise InvalidRequestError(
                    message, param="max_completion_tokens", hint="give only one of them"
                )
            max_tokens = self.max_completion_tokens
            if max_tokens < 1:
                message = f"max_completion_tokens must be a positive integer, got {max_tokens}"
                raise InvalidRequestError(message, param="max_completion_tokens")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        # The client knows the number under another name.
        with FieldNames(pairs=(("logprobs", "top_logprobs"),)).applied():
            logprobs = (self.top_logprobs or 0) if self.logprobs else None
            return self.sampling_params(defaults, max_tokens=max_tokens, logprobs=logprobs)

    @property
    def field_names(self) -> FieldNames:
        """What this request calls the engine's prompt and limits."""
        pairs = [("prompt", "messages")]
        if self.max_completion_tokens is not None:
            pairs.append(("max_tokens", "max_completion_tokens"))
        if self.top_logprobs is not None:
            pairs.append(("logprobs", "top_logprobs"))
        return FieldNames(pairs=pairs, in_messages=False)
