"""From a request to the chat request that asks for the same: one way to the engine for both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from pydantic import ValidationError

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.gateway.caller import Caller
from twostroke.server.generation.encoding import beside_loop, check_length
from twostroke.server.http.validation_errors import describe_validation
from twostroke.server.openai.chat_call import ChatCall, chat_call
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
NAMES = (
    ("messages", "input"),
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
_TOOL = re.compile(r"tools\[(\d+)\](\.function)?")


class ResponseCall(NamedTuple):
    """What the engine is asked for a response.

    Attributes:
        chat: The chat that asks for the same, ``ignored`` in this API's names.
        called: The functions of namespaces, by the names that the model calls them.
    """

    chat: ChatCall
    called: Mapping[str, CalledName]


class AsChat(NamedTuple):
    """A request in chat's terms.

    Attributes:
        request: The chat request that asks for the same.
        listed: The functions that the model is told of.
        conversation: What its messages were made of.
        ignored: What of it counts for nothing, in its own names.
    """

    request: ChatCompletionRequest
    listed: Sequence[NamedFunction]
    conversation: Conversation
    ignored: Sequence[str]

    def renamed(self, param: str) -> str:
        """What this API calls a field of the chat request."""
        return _placed(param, self.listed, self.conversation)


def as_chat(body: ResponsesRequest, conversation: Conversation) -> AsChat:
    """A request as a chat.

    Raises:
        InvalidRequestError: With this API's names of fields.
    """
    listed = _listed(named_functions(body.tools or ()), body)
    try:
        request = _chat_request(body, conversation.messages, listed)
    except InvalidRequestError as error:
        renamed = partial(_placed, listed=listed, conversation=conversation)
        raise in_terms_of_responses(error, renamed) from error
    ignored = [*body.dropped_fields(), *conversation.left_out]
    return AsChat(request, listed, conversation, ignored)


async def chat_beside_loop(
    model: ServedModel, body: ResponsesRequest, brought: Brought, *, large: bool = False
) -> AsChat:
    """``as_chat`` of a request and its items; of many, or of a large body, on a thread."""

    def read() -> AsChat:
        items = [*read_items(brought.before), *brought.own]
        conversation = conversation_of(body.instructions, items, len(brought.before))
        chat = as_chat(body, conversation)
        if body.truncation != "auto":  # before the work on what is too long
            with terms_of_responses():
                check_length(model, num_chars(chat.request.messages), "messages")
        return chat

    return await beside_loop(read, slow=large or brought.has_many)


async def response_call(
    model: ServedModel,
    body: ResponsesRequest,
    asked: AsChat,
    request_id: str,
    caller: Caller,
) -> ResponseCall:
    """What the engine is asked for a conversation.

    Raises:
        InvalidRequestError: As for a chat, with this API's names of fields.
    """
    try:
        call = await chat_call(model, asked.request, request_id, caller)
        if call.params.logprobs is not None and call.reading.parses:
            raise InvalidRequestError(
                "log-probabilities cannot be assigned where an answer may have thoughts or calls",
                param="logprobs",
                hint="leave tools and top_logprobs out, or use chat completions",
            )
    except InvalidRequestError as error:
        raise in_terms_of_responses(error, asked.renamed) from error
    ignored = [*asked.ignored, *map(_renamed, call.ignored)]
    return ResponseCall(call._replace(ignored=ignored), called_names(asked.listed))


@contextmanager
def terms_of_responses() -> Iterator[None]:
    """What is refused in chat's terms is refused in this API's."""
    try:
        yield
    except InvalidRequestError as error:
        raise in_terms_of_responses(error) from error


def in_terms_of_responses(
    error: InvalidRequestError, renamed: Callable[[str], str] | None = None
) -> InvalidRequestError:
    """A refusal of the chat request, with the names that this API has for its fields.

    Args:
        renamed: Gives the name of a field; by default without the places in input and tools.
    """
    param = None if error.param is None else (renamed or _renamed)(error.param)
    if type(error) not in (InvalidRequestError, RequestTooLargeError):
        return error
    if error.param is None or param is None:
        return error.renamed(param)
    return error.renamed(param, error.message.replace(error.param, param))


def _placed(param: str, listed: Sequence[NamedFunction], conversation: Conversation) -> str:
    """This API's name of a field of the chat request, with its place in input or tools."""
    if match := _TOOL.match(param):
        return listed[int(match[1])].place + param[match.end() :]
    return conversation.place_of(param) if param.startswith("messages[") else _renamed(param)


def _renamed(param: str) -> str:
    for theirs, ours in NAMES:
        if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
            # A message's place is none of the input's: several items may be one message.
            return ours if theirs == "messages" else ours + param.removeprefix(theirs)
    return param


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
