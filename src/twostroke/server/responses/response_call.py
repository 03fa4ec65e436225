"""The reader of responses: to a call, by way of the chat request that asks for the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import Caller
from twostroke.server.calls.call import Call
from twostroke.server.calls.prepare import PreparedCall, prepare
from twostroke.server.generation.encoding import beside_loop, check_length
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.http.validation_errors import describe_validation
from twostroke.server.openai.chat_call import chat_call
from twostroke.server.openai.chat_messages import num_chars
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.responses.conversation import Conversation, conversation_of
from twostroke.server.responses.items import read_items
from twostroke.server.responses.request import ResponsesRequest, TextFormat
from twostroke.server.responses.request_tools import (
    AllowedTools,
    CalledName,
    FunctionChoice,
    NamedFunction,
    allowed_functions,
    called_names,
    joined_name,
    named_functions,
)
from twostroke.server.responses.workroom import Brought
from twostroke.server.state.served_model import ServedModel

# Fields that the chat request has under the same name, with the same meaning.
SHARED_FIELDS = (
    "model",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "priority",
    "deadline_ms",
    "cache_salt",
    "chat_template_kwargs",
    "thinking_token_budget",
    "user",
    "safety_identifier",
    "prompt_cache_key",
)
# What the chat request calls a field, and what this API does; the first that fits decides.
_PAIRS = (
    ("prompt", "input"),
    ("context", "truncation"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("structured_outputs", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("logprobs", "top_logprobs"),
)


def _unplaced(param: str) -> str | None:
    """A message's place is none of the input's: several items may be one message."""
    return "input" if param.partition("[")[0] == "messages" else None


NAMES = FieldNames(pairs=_PAIRS, placed=_unplaced)
_TOOL = re.compile(r"tools\[(\d+)\](\.function)?")


class ResponseCall(NamedTuple):
    """What a request asks for.

    Attributes:
        call: ``ignored`` in it are all fields that count for nothing, in this API's names.
        names: What this API calls the fields of the call.
        called: The functions of namespaces, by the names that the model calls them.
        left_out: Items that are none of the messages.
    """

    call: Call
    names: FieldNames
    called: Mapping[str, CalledName]
    left_out: Sequence[str]


async def read_response(
    model: ServedModel, body: ResponsesRequest, brought: Brought, *, large: bool = False
) -> ResponseCall:
    """What a request asks for with its items, by way of the chat request that asks for the same.

    Many items, or a large body, are read on a thread.

    Raises:
        InvalidRequestError: As for a chat, with this API's names of fields.
    """

    def read() -> tuple[Conversation, Sequence[NamedFunction], ChatCompletionRequest]:
        items = [*read_items(brought.before), *brought.own]
        conversation = conversation_of(body.instructions, items, len(brought.before))
        listed = _listed(named_functions(body.tools or ()), body)
        with _names(listed, conversation).applied():
            chat = _chat_request(body, conversation.messages, listed)
        if body.truncation != "auto":  # before the work on what is too long
            with NAMES.applied():
                check_length(model, num_chars(chat.messages), "messages")
        return conversation, listed, chat

    conversation, listed, chat = await beside_loop(read, slow=large or brought.has_many)
    names = _names(listed, conversation)
    with names.applied():
        call = await chat_call(model, chat)
    ignored = [*body.dropped_fields(), *conversation.left_out, *map(NAMES.of, call.ignored)]
    call = replace(call, ignored=ignored)
    return ResponseCall(call, names, called_names(listed), conversation.left_out)


async def prepare_response(
    model: ServedModel, asked: ResponseCall, request_id: str, caller: Caller
) -> PreparedCall:
    """What the engine is asked for a response; it raises as ``read_response`` does."""
    with asked.names.applied():
        prepared = await prepare(model, asked.call, request_id, caller)
        if asked.call.params.logprobs is not None and prepared.reading.parses:
            raise InvalidRequestError(
                "log-probabilities cannot be assigned where an answer may have thoughts or calls",
                param="logprobs",
                hint="leave tools and top_logprobs out, or use chat completions",
            )
    return prepared


def _names(listed: Sequence[NamedFunction], conversation: Conversation) -> FieldNames:
    """This API's names of fields, with their places in input and tools."""

    def placed(param: str) -> str | None:
        if match := _TOOL.match(param):
            return listed[int(match[1])].place + param[match.end() :]
        return conversation.place_of(param) if param.startswith("messages[") else _unplaced(param)

    return replace(NAMES, placed=placed)


def _chat_request(
    body: ResponsesRequest, messages: Sequence[dict[str, Any]], listed: Sequence[NamedFunction]
) -> ChatCompletionRequest:
    values = {name: getattr(body, name) for name in SHARED_FIELDS}
    values |= {
        "messages": list(messages),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "context": {} if body.truncation == "auto" else None,
        "response_format": response_format(body.form),
        "tools": [function.as_chat() for function in listed] or None,
        "tool_choice": _tool_choice(body),
    }
    try:
        return ChatCompletionRequest.model_validate(
            {name: value for name, value in values.items() if value is not None}
        )
    except ValidationError as error:
        mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in error.errors()]
        raise describe_validation(mistakes) from error


def response_format(form: TextFormat) -> dict[str, Any]:
    """``text.format`` as chat's ``response_format``, which has the schema in a wrapping."""
    if form["type"] != "json_schema":
        return {"type": form["type"]}
    fields = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": fields}


def _listed(functions: list[NamedFunction], body: ResponsesRequest) -> list[NamedFunction]:
    """The functions that the model is told of."""
    choice = body.tool_choice
    return allowed_functions(functions, choice) if isinstance(choice, AllowedTools) else functions


def _tool_choice(body: ResponsesRequest) -> Any:
    """The choice in chat's nested form."""
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        name = joined_name(choice.namespace, choice.name)
        return {"type": "function", "function": {"name": name}}
    return choice.mode if isinstance(choice, AllowedTools) else choice
