"""The form of a message: what its schema or its tools ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.server.anthropic.message_request import MessageRequest
from twostroke.server.anthropic.names import FORMAT, NAMES
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.openai.tools.call_form import CallableTools, after_thought, constrain_calls
from twostroke.server.openai.tools.request_tools import ToolFields
from twostroke.server.state.served_model import ServedModel


async def constrained(
    model: ServedModel,
    body: MessageRequest,
    tools: Mapping[int, ToolFields] | None,
    reading: AnswerReading,
    params: SamplingParams,
    tenant: str,
) -> SamplingParams:
    """The parameters, with the form that the request asks of its answer, compiled.

    Args:
        tools: Those that the answer may call, by their places in the request.
        tenant: On whose behalf.

    Raises:
        InvalidRequestError: The form cannot be enforced, or does not go with the tools.
        QueueFullError: Too many compilations wait.
    """
    output = body.output_config.format if body.output_config is not None else None
    with NAMES.applied():
        if output is not None:
            params = replace(params, structured_outputs=_output_form(output))
        if tools is None:
            params = after_thought(reading.with_markers(params), reading)
            if params.structured_outputs is None:
                return params
            compiled = await model.compile_threads.compile(params.structured_outputs, tenant)
            return replace(params, structured_outputs=compiled)
        choice = body.tool_choice
        named = choice.name if choice is not None and choice.type == "tool" else None
        places = [
            (place, tool)
            for place, tool in tools.items()
            if named is None or tool.function.name == named
        ]
        must_call = choice is not None and choice.type in ("any", "tool")
        max_calls = 1 if named is not None else body.max_calls
        return await constrain_calls(
            model, CallableTools(places, must_call, max_calls), reading, params, tenant
        )


def _output_form(output: dict[str, Any]) -> StructuredOutputsParams:
    """The schema of ``output_config.format``."""
    if output.get("type") != "json_schema" or not isinstance(output.get("schema"), dict):
        raise InvalidRequestError(
            f"{FORMAT} must have the type json_schema and a schema, an object", param=FORMAT
        )
    return StructuredOutputsParams(json=output["schema"])
