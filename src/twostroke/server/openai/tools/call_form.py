"""The form of a chat's answer where it may think or call tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from twostroke.constraints.schemas.closing import Closing
from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import PARAM, StructuredOutputsParams
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.openai.answer_form import (
    CLOSING_SWITCH,
    compile_form,
)
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.tools.request_tools import ToolChoiceFields, ToolFields
from twostroke.server.state.served_model import ServedModel


class CallableTools(NamedTuple):
    """What an answer may call.

    Attributes:
        tools: Those that it may call, with their places in the request.
        must_call: It has no text but calls.
        max_calls: ``None``: as many as the model likes.
        closing: Which objects have no other properties than their schema lists.
    """

    tools: Sequence[tuple[int, ToolFields]]
    must_call: bool
    max_calls: int | None
    closing: Closing = "listed"


async def constrain_answer(
    model: ServedModel,
    calls: CallableTools | None,
    reading: AnswerReading,
    params: SamplingParams,
    tenant: str,
) -> SamplingParams:
    """Parameters with the form that an answer has, compiled, and the text that its parser needs.

    Args:
        calls: What it may call; ``None``: nothing.
        tenant: On whose behalf.

    Raises:
        InvalidRequestError: The form cannot be enforced, or does not go with the tools.
        QueueFullError: Too many compilations wait.
    """
    params = reading.with_markers(params)
    if calls is not None:
        return await _constrain_calls(model, calls, reading, params, tenant)
    wanted = params.structured_outputs
    if wanted is not None and reading.thought:  # the form begins behind the thought
        params = replace(params, structured_outputs=replace(wanted, thought=reading.thought))
    return await compile_form(model, params, tenant)


def calls_of_chat(body: ChatCompletionRequest) -> CallableTools | None:
    """What the answer to a chat may call."""
    if not body.may_call:
        return None
    choice = body.tool_choice
    chosen = choice if isinstance(choice, ToolChoiceFields) else None
    tools = [
        (place, tool)
        for place, tool in enumerate(body.tools or ())
        if chosen is None or tool.function.name in chosen.names
    ]
    single = body.parallel_tool_calls is False or (chosen is not None and chosen.name is not None)
    must_call = "required" in (choice, chosen and chosen.mode)
    return CallableTools(tools, must_call, 1 if single else None, _closing(body))


def _closing(body: ChatCompletionRequest) -> Closing:
    """The switch of vLLM for answers, where a client gives it, is that for calls, too."""
    switch = (body.structured_outputs or {}).get(CLOSING_SWITCH)
    return "listed" if switch is None else "all" if switch else "none"


async def _constrain_calls(
    model: ServedModel,
    calls: CallableTools,
    reading: AnswerReading,
    params: SamplingParams,
    tenant: str,
) -> SamplingParams:
    """Parameters with the form of an answer that may call tools.

    An answer that must call is constrained from its beginning, any other once the model has opened
    a call. An answer with a form of its own is either calls or of that form. All begins behind the
    thought, where the model has one.
    """
    family, must_call = model.tool_family, calls.must_call
    assert family is not None  # AnswerReading refuses tools without one
    answer = None if must_call else params.structured_outputs
    strict = any(tool.function.strict for _, tool in calls.tools)
    if not (must_call or answer or strict or family.trigger):
        return params  # a call cannot be told from text before it is written
    form = StructuredOutputsParams(
        tool_calls=_form(family.name, calls, answer),
        thought="" if reading.thought == "channels" else reading.thought,
    )
    try:
        with FieldNames(pairs=((f"{PARAM}.tool_calls", "tools"),)).applied():
            compiled = await model.compile_threads.compile(form, tenant)
    except InvalidRequestError:
        if must_call or strict or answer is not None:
            await _check_expressions(model, calls, tenant)
            raise
        return params  # no promise was asked for
    return replace(params, structured_outputs=compiled)


async def _check_expressions(model: ServedModel, calls: CallableTools, tenant: str) -> None:
    """Name the custom tool whose expression is at fault: a grammar of all calls does not tell."""
    for place, tool in calls.tools:
        if tool.custom is None or tool.custom.format is None:
            continue
        form = StructuredOutputsParams(json=json.dumps(tool.function.parameters))
        with FieldNames(pairs=((f"{PARAM}.json", f"tools[{place}].custom.format"),)).applied():
            await model.compile_threads.compile(form, tenant)


def _form(family: str, calls: CallableTools, answer: StructuredOutputsParams | None) -> str:
    """What ``constraints/tool_answers.py`` reads."""
    functions: list[dict[str, Any]] = [
        {
            "name": tool.function.name,
            "parameters": tool.function.parameters,
            "strict": bool(tool.function.strict),
            "path": f"tools[{place}].{'function.parameters' if tool.custom is None else 'custom'}",
        }
        for place, tool in calls.tools
    ]
    form: dict[str, Any] = {
        "family": family,
        "functions": functions,
        "must_call": calls.must_call,
        "max_calls": calls.max_calls,
        "closing": calls.closing,
    }
    if answer is not None:
        form["answer"] = {
            name: value
            for name in StructuredOutputsParams.__slots__
            if (value := getattr(answer, name)) not in (None, False, "")
        }
    return json.dumps(form)
