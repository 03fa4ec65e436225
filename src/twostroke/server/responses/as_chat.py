"""From a request to the chat request that asks for the same: one way to the engine for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.gateway.caller import Caller
from twostroke.server.http.validation_errors import describe_validation
from twostroke.server.openai.chat_call import ChatCall, chat_call
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.responses.request import (
    AllowedTools,
    FunctionChoice,
    FunctionTool,
    ResponsesRequest,
    TextFormat,
)
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


async def response_call(
    model: ServedModel,
    chat: ChatCompletionRequest,
    ignored: list[str],
    request_id: str,
    caller: Caller,
) -> ChatCall:
    """What the engine is asked for a conversation.

    Args:
        chat: See ``chat_request``.
        ignored: Fields of the request that change nothing.

    Raises:
        InvalidRequestError: As for a chat, with this API's names of fields.
    """
    try:
        call = await chat_call(model, chat, request_id, caller)
        if call.params.logprobs is not None and call.reading.parses:
            raise InvalidRequestError(
                "log-probabilities cannot be assigned where an answer may have thoughts or calls",
                param="logprobs",
                hint="leave tools and top_logprobs out, or use chat completions",
            )
    except InvalidRequestError as error:
        raise in_terms_of_responses(error) from error
    return call._replace(ignored=ignored + [_renamed(name) for name in call.ignored])


@contextmanager
def terms_of_responses() -> Iterator[None]:
    """What is refused in chat's terms is refused in this API's."""
    try:
        yield
    except InvalidRequestError as error:
        raise in_terms_of_responses(error) from error


def in_terms_of_responses(error: InvalidRequestError) -> InvalidRequestError:
    """A refusal of the chat request, with the names that this API has for its fields."""
    param = None if error.param is None else _renamed(error.param)
    if isinstance(error, RequestTooLargeError):
        return RequestTooLargeError(
            error.message,
            needed=error.needed,
            available=error.available,
            param=param,
            hint=error.hint,
        )
    if type(error) is not InvalidRequestError:
        return error
    message = error.message
    if error.param is not None and param is not None:
        message = message.replace(error.param, param)
    return InvalidRequestError(message, param=param, hint=error.hint)


def _renamed(param: str) -> str:
    for theirs, ours in NAMES:
        if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
            # A message's place is none of the input's: several items may be one message.
            return ours if theirs == "messages" else ours + param.removeprefix(theirs)
    return param.replace("].function", "]") if param.startswith("tools[") else param


def chat_request(
    body: ResponsesRequest, messages: Sequence[dict[str, Any]]
) -> ChatCompletionRequest:
    """The chat request that asks for the same.

    Raises:
        InvalidRequestError: With this API's names of fields.
    """
    values = {name: getattr(body, name) for name in SHARED_FIELDS}
    values |= {
        "messages": list(messages),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "context": {} if body.truncation == "auto" else None,
        "response_format": response_format(body.form),
        **_tools(body),
    }
    try:
        return ChatCompletionRequest.model_validate(
            {name: value for name, value in values.items() if value is not None}
        )
    except ValidationError as error:
        mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in error.errors()]
        raise in_terms_of_responses(describe_validation(mistakes)) from error


def response_format(form: TextFormat) -> dict[str, Any]:
    """``text.format`` as chat's ``response_format``, which has the schema in a wrapping."""
    if form["type"] != "json_schema":
        return {"type": form["type"]}
    fields = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": fields}


def _tools(body: ResponsesRequest) -> dict[str, Any]:
    """Tools and choice in chat's nested form."""
    tools, choice = body.tools or [], body.tool_choice
    nested: Any = choice
    if isinstance(choice, FunctionChoice):
        nested = {"type": "function", "function": {"name": choice.name}}
    elif isinstance(choice, AllowedTools):
        tools, nested = _allowed(tools, choice), choice.mode
    listed = [{"type": "function", "function": _function(tool)} for tool in tools]
    return {"tools": listed or None, "tool_choice": nested}


def _allowed(tools: Sequence[FunctionTool], choice: AllowedTools) -> list[FunctionTool]:
    names = {tool.name for tool in choice.tools}
    if missing := names - {tool.name for tool in tools}:
        name = min(missing)
        raise InvalidRequestError(
            f"tool_choice names {name[:128]!a}, which is not among the tools",
            param="tool_choice",
            hint="name functions of tools",
        )
    return [tool for tool in tools if tool.name in names]


def _function(tool: FunctionTool) -> dict[str, Any]:
    fields = tool.model_dump(include={"name", "description", "parameters", "strict"})
    return {name: value for name, value in fields.items() if value is not None}
