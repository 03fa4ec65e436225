"""The reader of messages: from a request to the call that all dialects have in common."""

from __future__ import annotations

from dataclasses import replace

from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.server.anthropic.message_request import MessageRequest
from twostroke.server.anthropic.names import FORMAT, NAMES
from twostroke.server.anthropic.turns import read_turns
from twostroke.server.calls.call import Call, CallableTools
from twostroke.server.state.served_model import ServedModel


async def message_call(model: ServedModel, body: MessageRequest) -> Call:
    """What a message asks for.

    Raises:
        InvalidRequestError: A value is out of its range, or fields do not go together.
    """
    params = body.to_params(model.client.info.sampling_defaults)
    tools = body.callable_tools()
    turns = await read_turns(model, body, tools)
    if model.reasoning_parser is not None:
        params = replace(params, thinking_token_budget=body.thinking_budget)
    with NAMES.applied():
        params = replace(params, structured_outputs=_output_form(body))
    choice = body.tool_choice
    callable_tools = CallableTools(
        [tool.as_callable(place) for place, tool in (tools or {}).items()],
        must_call=choice is not None and choice.type in ("any", "tool"),
        only=choice.name if choice is not None and choice.type == "tool" else None,
    )
    return Call(
        messages=turns.messages,
        rendering=turns.rendering,
        params=params,
        tools=callable_tools if tools else None,
        max_calls=body.max_calls,
        form_names=NAMES,
        ttft_target=None if body.deadline_ms is None else body.deadline_ms / 1000,
        labels=body.labels,
        ignored=turns.ignored,
    )


def _output_form(body: MessageRequest) -> StructuredOutputsParams | None:
    """The schema of ``output_config.format``.

    Raises:
        InvalidRequestError: There is none, or it makes no sense.
    """
    output = None if body.output_config is None else body.output_config.format
    if output is None:
        return None
    if output.get("type") != "json_schema" or not isinstance(output.get("schema"), dict):
        raise InvalidRequestError(
            f"{FORMAT} must have the type json_schema and a schema, an object", param=FORMAT
        )
    return StructuredOutputsParams(json=output["schema"])
