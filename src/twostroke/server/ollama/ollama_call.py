"""The reader of conversations: to a call, by way of the chat request that asks for the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.calls.call import Call
from twostroke.server.generation.encoding import beside_loop, check_tokens
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.http.body_fields import StrictModel
from twostroke.server.http.validation_errors import describe_validation
from twostroke.server.ollama.generation_fields import OllamaChatRequest, OllamaGenerationFields
from twostroke.server.ollama.message_fields import OllamaMessageFields, chat_messages
from twostroke.server.ollama.names import tagged
from twostroke.server.ollama.option_fields import CHAT_NAMES, OptionFields
from twostroke.server.openai.chat_call import chat_call
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.template_variables import THINKING_VARIABLES
from twostroke.server.state.served_model import ServedModel
from twostroke.text.json_values import is_large

T = TypeVar("T", bound=StrictModel)
_OPTIONS = [name for name in OptionFields.model_fields if name not in CHAT_NAMES]
# What the chat request calls a field, and what this API does; the first that fits decides.
_PAIRS = (
    ("response_format.json_schema.schema", "format"),
    ("response_format.json_schema", "format"),
    ("response_format", "format"),
    ("structured_outputs.json", "format"),
    ("structured_outputs", "format"),
    *((theirs, f"options.{ours}") for ours, theirs in CHAT_NAMES.items()),
    *((name, f"options.{name}") for name in _OPTIONS),
)


def _tool_name(param: str) -> str | None:
    if param.startswith("messages[") and param.endswith(".name"):
        return f"{param.removesuffix('.name')}.tool_name"
    return None


NAMES = FieldNames(
    pairs=_PAIRS,
    placed=_tool_name,
    sentences=True,
    too_large_hint=(
        "shorten the conversation, or send truncate: true to leave its oldest turns out"
    ),
)


class OllamaCall(NamedTuple):
    """What a conversation asks for.

    Attributes:
        names: What its chat calls the engine's prompt and limits; below ``NAMES``.
        max_tokens: Most tokens of the answer, which may be more than the context holds.
    """

    call: Call
    names: FieldNames
    max_tokens: int | None


async def ollama_call(
    model: ServedModel,
    body: OllamaGenerationFields,
    messages: Sequence[OllamaMessageFields],
    context: Sequence[int],
) -> OllamaCall:
    """The call for a conversation after ``context``, by way of the chat that asks for the same.

    Raises:
        InvalidRequestError: A field is malformed, or the model does not think.
    """
    fields, ignored = sampling_fields(model, body)
    thinking, unread = _thinking(model, body)
    slow = is_large([[message.content, message.tool_calls] for message in messages]) or any(
        is_large(call.function.arguments) for m in messages for call in m.tool_calls or ()
    )
    turns = await beside_loop(lambda: chat_messages(messages), slow=slow)
    values = {
        **fields,
        **thinking,
        "messages": turns,
        "stream": body.streamed,
        "logprobs": body.logprobs or None,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        "context": {} if body.truncate else None,
        "tools": (body.tools or None) if isinstance(body, OllamaChatRequest) else None,
    }
    if body.top_logprobs and not body.logprobs:
        ignored.append("top_logprobs")
    chat = validated(ChatCompletionRequest, values)
    limit = chat.max_tokens
    if body.truncate and limit is not None and limit > model.client.info.longest_request // 2:
        chat.max_tokens = None  # turns make room for an answer of common length, not for this one
    with NAMES.applied(), chat.field_names.applied():
        check_tokens(model, context, "context")
        call = await chat_call(model, chat)
    ignored = [*body.dropped_fields(), *ignored, *unread, *call.ignored]
    return OllamaCall(replace(call, ignored=ignored), chat.field_names, limit)


def validated(request: type[T], values: Mapping[str, Any]) -> T:
    """A request of OpenAI's API with these fields, those that are ``None`` left out.

    Raises:
        InvalidRequestError: One is malformed, by the name that this API has for it.
    """
    try:
        return request.model_validate(
            {n: value for n, value in values.items() if value is not None}
        )
    except ValidationError as error:
        mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in error.errors()]
        with NAMES.applied():
            raise describe_validation(mistakes) from error


def sampling_fields(
    model: ServedModel, body: OllamaGenerationFields
) -> tuple[dict[str, Any], list[str]]:
    """The fields that say how to draw and in which form, and which options change nothing."""
    fields: dict[str, Any] = {}
    ignored: list[str] = []
    if body.options is not None:
        with NAMES.applied():
            fields, ignored = body.options.chat_fields(model.client.info.sampling_defaults)
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif body.format:
        schema = {"name": "format", "schema": body.format}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields, ignored


def _thinking(model: ServedModel, body: OllamaGenerationFields) -> tuple[dict[str, Any], list[str]]:
    """What ``think`` is in a chat request; what of it the model does not know is named."""
    think = body.think
    if think is None:
        return {}, []
    thinks = model.reasoning_parser is not None
    if think is not False and not thinks:
        name = tagged(body.model or model.name)
        raise InvalidRequestError(
            f"{name!a} does not support thinking", param="think", hint="leave think out"
        )
    read = model.chat_encoder.template.variables
    choices = {name: think is not False for name in THINKING_VARIABLES if name in read}
    fields: dict[str, Any] = {"chat_template_kwargs": choices} if choices else {}
    knows = bool(choices) or think is True or not thinks
    if isinstance(think, str):
        knows = "reasoning_effort" in read
        if knows:  # templates know three
            fields["reasoning_effort"] = "high" if think == "max" else think
    return fields, [] if knows else ["think"]
