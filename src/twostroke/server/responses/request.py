"""What ``POST /v1/responses`` takes: the request object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Required

from annotated_types import MaxLen
from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import MAX_LOGPROBS, MAX_STOP_STRINGS
from twostroke.server.foreign_fields import ADVISORY, Counterpart
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.field_limits import LIMITS, OpenAIFields, RequestFields, Texts
from twostroke.server.openai.generation_fields import (
    DEADLINE,
    LABELLED,
    MODEL_DEFAULT,
    Deadline,
    Label,
    StreamOptions,
)
from twostroke.server.responses.items import MAX_ID_LENGTH, ItemId, Items, check_num_parts
from twostroke.server.responses.request_tools import AllowedTools, FunctionChoice, Tools

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
METADATA_LIMITS: Mapping[str, Any] = {
    "maxProperties": MAX_METADATA,
    "propertyNames": {"maxLength": MAX_METADATA_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
}
LOGPROBS = "message.output_text.logprobs"
EFFORT_PATTERN = r"^[a-z_]{1,32}$"
# What else may be included is for tools that are not here, or comes anyway.
INCLUDABLE = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class TextFormat(TypedDict, total=False):
    """The form of the answer's text; not a model like the others, as these have a ``schema``."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    type: Required[Literal["text", "json_object", "json_schema"]]
    name: str | None
    description: str | None
    schema: dict[str, Any] | None
    strict: bool | None


class TextFields(OpenAIFields):
    """How the text is to be."""

    ignored: ClassVar[Mapping[str, str]] = {"verbosity": ADVISORY["verbosity"]}

    format: TextFormat | None = None


class ReasoningFields(OpenAIFields):
    """How the model thinks."""

    ignored: ClassVar[Mapping[str, str]] = {
        "summary": "thoughts are given in full",
        "generate_summary": "thoughts are given in full",
        "context": "the chat template decides which thoughts it writes",
        "mode": "there is one mode",
    }

    effort: str | None = Field(
        None,
        pattern=EFFORT_PATTERN,
        description="For chat templates that read reasoning_effort; others ignore it.",
    )


class ConversationFields(OpenAIFields):
    """A conversation by its id."""

    id: ItemId


def _format_of_schema(schema: Any) -> Any:
    """``text.format`` of a bare schema, which may be JSON in a text."""
    if isinstance(schema, str):
        with suppress(ValueError, RecursionError):  # the check of text.format says what is wrong
            schema = json.loads(schema)
    return {"type": "json_schema", "schema": schema}


def _format_of_chat(form: Any) -> Any:
    """``text.format`` of chat's ``response_format``, which has the schema in a wrapping."""
    if not isinstance(form, dict):
        return form
    wrapped = form.get("json_schema")
    fields = {name: value for name, value in form.items() if name != "json_schema"}
    fields = (wrapped if isinstance(wrapped, dict) else {}) | fields
    if fields.get("schema") is not None and form.get("type") == "json_object":
        fields["type"] = "json_schema"
    return fields


_FORM = "send a JSON schema in text.format, or use /v1/chat/completions"


class ResponsesRequest(RequestFields):
    """Body of ``POST /v1/responses``."""

    counterparts: ClassVar[Mapping[str, Counterpart]] = {
        "json_schema": Counterpart(
            ("text", "format"), {"type": ["string", "object"]}, _format_of_schema
        ),
        "response_format": Counterpart(("text", "format"), {"type": "object"}, _format_of_chat),
    }
    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("ebnf", "grammar", "regex", "structured_outputs"), _FORM),
        **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), _FORM),
        "max_completion_tokens": "send max_output_tokens",
        "max_tokens": "send max_output_tokens",
        "messages": "send input",
        "reasoning_effort": "send reasoning.effort",
    }

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **LIMITS,
        "max_output_tokens": {"minimum": 1},
        "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
        "metadata": METADATA_LIMITS,
    }
    ignored: ClassVar[Mapping[str, str]] = {
        "max_tool_calls": "it bounds tools that the server runs, and there are none",
        "image": "there are no images",
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "access_programs": (),
        "context_management": ([],),
        "moderation": (),
        "prompt": (),
    }
    nested: ClassVar[tuple[str, ...]] = ("input", "tools", "tool_choice", "text", "reasoning")

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    input: str | Annotated[Items, BeforeValidator(check_num_parts)] | None = Field(
        None, description="A text, or items; may be left out after a previous response."
    )
    instructions: str | None = Field(
        None, description="The system prompt; that of a previous response does not hold on."
    )
    previous_response_id: str | None = Field(
        None,
        max_length=MAX_ID_LENGTH,
        description="A stored response of this key, whose conversation goes on.",
    )
    conversation: str | ConversationFields | None = Field(
        None,
        description=(
            "A stored conversation of this key, or its id: its items go before, and those of this"
            " response are added to it."
        ),
    )
    store: bool | None = Field(None, description="Keep the response; true by default.")
    background: bool | None = Field(
        None, description="Answer at once, and run on; the response must be stored."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: Annotated[list[INCLUDABLE], MaxLen(64), FirstMistake()] | None = Field(
        None, description=f"{LOGPROBS} works; of the others there is nothing to include."
    )
    tools: Tools | None = Field(None, description="Functions that the answer may call.")
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = Field(
        None, description="By default auto where there are tools: the model decides."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="False: the answer has one call at most."
    )
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto leaves out the oldest turns where the conversation does not fit."
    )
    max_output_tokens: int | None = Field(
        None, description="Of thoughts, calls and text together; by default all that fits."
    )
    temperature: float | None = Field(None, description=f"0 is greedy. {MODEL_DEFAULT}, else 1.")
    top_p: float | None = Field(None, description=f"{MODEL_DEFAULT}, else 1.")
    top_logprobs: int | None = Field(
        None, description="Log-probabilities of each token's likeliest alternatives."
    )
    metadata: dict[str, str] | None = Field(None, description="Kept and returned.")
    user: Label | None = Field(None, description=f"The client's name for its end user; {LABELLED}.")
    safety_identifier: Label | None = Field(None, description=f"Newer name of user; {LABELLED}.")
    prompt_cache_key: Label | None = Field(
        None,
        description=f"The client's name for a shared prefix, which is found without; {LABELLED}.",
    )
    # Beyond OpenAI's, as in chat.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Annotated[Texts, MaxLen(MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool | None = None
    priority: int | None = Field(None, description="Lower runs first under --policy priority.")
    deadline_ms: Deadline | None = Field(None, description=DEADLINE)
    cache_salt: Label | None = Field(
        None, description="Cached prefixes are shared only between equal salts."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="Variables of the chat template; those that it does not read are ignored.",
    )
    thinking_token_budget: int | None = Field(
        None,
        description=(
            "Most tokens of the thought before the answer, whose end is then forced; -1: no bound."
            " Models that do not think ignore it."
        ),
    )

    @property
    def form(self) -> TextFormat:
        """The form of the text."""
        return (self.text and self.text.format) or {"type": "text"}

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response goes on with."""
        given = self.conversation
        return given.id if isinstance(given, ConversationFields) else given

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def check_combinations(self) -> None:
        """Refuse combinations that have no meaning, and metadata that cannot be kept."""
        if self.background and not self.stored:
            raise InvalidRequestError(
                "background needs store: nothing else would have the answer",
                param="background",
                hint="leave store out, or wait for the answer",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true", param="stream_options")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            message = f"max_output_tokens must be a positive integer, got {self.max_output_tokens}"
            raise InvalidRequestError(message, param="max_output_tokens")
        _check_json("text.format", self.form)
        check_metadata(self.metadata or {})
        check_unicode("previous_response_id", [self.previous_response_id or ""])
        if self.conversation is not None:
            check_unicode("conversation", [self.conversation_id or ""])
            if self.previous_response_id is not None:
                raise InvalidRequestError(
                    "conversation and previous_response_id both say what goes before",
                    param="conversation",
                    hint="give one of them",
                )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that cannot be kept."""
    check_unicode("metadata", [*metadata, *metadata.values()])
    if len(metadata) > MAX_METADATA:
        raise InvalidRequestError(
            f"metadata has {len(metadata)} keys, at most {MAX_METADATA} are kept",
            param="metadata",
            hint="send fewer",
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequestError(
                f"metadata has a key of more than {MAX_METADATA_KEY} characters, or a value"
                f" of more than {MAX_METADATA_VALUE}",
                param="metadata",
                hint="send shorter ones",
            )


def _check_json(param: str, value: Any) -> None:
    """Refuse what no encoder writes, since the response shows it."""
    try:
        check_unicode(param, [json.dumps(value, ensure_ascii=False)])
    except RecursionError as error:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from error
