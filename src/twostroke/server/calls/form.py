"""The form of an answer, compiled, where it may think or call tools, too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import PARAM, StructuredOutputsParams
from twostroke.server.calls.call import Call, CallableTools
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.state.served_model import ServedModel


async def constrain_answer(
    model: ServedModel, call: Call, reading: AnswerReading, tenant: str
) -> SamplingParams:
    """A call's parameters, with the form of its answer compiled as by ``compile_form``."""
    if call.tools is not None:
        return await _constrain_calls(model, call, call.tools, reading, tenant)
    params, wanted = call.params, call.params.structured_outputs
    if wanted is not None and reading.thought:  # the form begins after the thought
        params = replace(params, structured_outputs=replace(wanted, thought=reading.thought))
    return await compile_form(model, params, tenant)


async def compile_form(model: ServedModel, params: SamplingParams, tenant: str) -> SamplingParams:
    """The parameters, once the form of the answer has been compiled beside the event loop.

    Args:
        tenant: On whose behalf.

    Raises:
        InvalidRequestError: The form cannot be enforced; the message names the keyword and where it
            stands.
        QueueFullError: Too many compilations wait.
    """
    if params.structured_outputs is None:
        return params
    compiled = await model.compile_threads.compile(params.structured_outputs, tenant)
    return replace(params, structured_outputs=compiled)


async def _constrain_calls(
    model: ServedModel, call: Call, tools: CallableTools, reading: AnswerReading, tenant: str
) -> SamplingParams:
    """Parameters with the form of an answer that may call tools.

    An answer that must call is constrained from its beginning, any other once the model has opened
    a call. An answer with a form of its own is either calls or of that form. All begins after the
    thought, where the model has one.
    """
    family, must_call, params = model.tool_family, tools.must_call, call.params
    assert family is not None  # AnswerReading refuses tools without one
    answer = None if must_call else params.structured_outputs
    strict = any(tool.strict for tool in tools.allowed)
    if not (must_call or answer or strict or family.trigger):
        return params  # a call cannot be told from text before it is written
    form = StructuredOutputsParams(
        tool_calls=_form(family.name, call, tools, answer),
        thought="" if reading.thought == "channels" else reading.thought,
    )
    try:
        with FieldNames(pairs=((f"{PARAM}.tool_calls", "tools"),)).applied():
            compiled = await model.compile_threads.compile(form, tenant)
    except InvalidRequestError:
        if must_call or strict or answer is not None:
            await _check_expressions(model, tools, tenant)
            raise
        return params  # no promise was asked for
    return replace(params, structured_outputs=compiled)


async def _check_expressions(model: ServedModel, tools: CallableTools, tenant: str) -> None:
    """Name the custom tool whose expression is at fault: a grammar of all calls does not tell."""
    for tool in tools.allowed:
        if tool.expression_path is None:
            continue
        form = StructuredOutputsParams(json=json.dumps(tool.parameters))
        with FieldNames(pairs=((f"{PARAM}.json", tool.expression_path),)).applied():
            await model.compile_threads.compile(form, tenant)


def _form(
    family: str, call: Call, tools: CallableTools, answer: StructuredOutputsParams | None
) -> str:
    """What ``constraints/tool_answers.py`` reads."""
    functions = [
        {name: getattr(tool, name) for name in ("name", "parameters", "strict", "path")}
        for tool in tools.allowed
    ]
    form: dict[str, Any] = {
        "family": family,
        "functions": functions,
        "must_call": tools.must_call,
        "max_calls": call.max_calls if tools.only is None else 1,
        "closing": tools.closing,
    }
    if answer is not None:
        form["answer"] = {
            name: value
            for name in StructuredOutputsParams.__slots__
            if (value := getattr(answer, name)) not in (None, False, "")
        }
    return json.dumps(form)
