"""What a message's tools and its schema ask of the answer."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.server.anthropic.message_request import MessageRequest
from twostroke.server.anthropic.names import FORMAT
from twostroke.server.openai.tools.call_form import CallableTools
from twostroke.server.openai.tools.request_tools import ToolFields


def calls_of_message(
    body: MessageRequest, tools: Mapping[int, ToolFields] | None
) -> CallableTools | None:
    """What the answer may call.

    Args:
        tools: By their places in the request.
    """
    if tools is None:
        return None
    choice = body.tool_choice
    named = choice.name if choice is not None and choice.type == "tool" else None
    places = [
        (place, tool)
        for place, tool in tools.items()
        if named is None or tool.function.name == named
    ]
    must_call = choice is not None and choice.type in ("any", "tool")
    return CallableTools(places, must_call, 1 if named is not None else body.max_calls)


def output_form(body: MessageRequest) -> StructuredOutputsParams | None:
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
