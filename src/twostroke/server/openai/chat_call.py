"""The reader of chats: from a request to the call that all dialects have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from twostroke.server.calls.call import Call, CallableTools
from twostroke.server.generation.encoding import beside_loop
from twostroke.server.openai.answer_form import CLOSING_SWITCH, form_names
from twostroke.server.openai.chat_documents import chat_context, context_ranking
from twostroke.server.openai.chat_messages import (
    bounded_messages,
    template_messages,
    turn_options,
)
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.template_variables import template_variables
from twostroke.server.openai.tools.request_tools import (
    ToolChoiceFields,
    ToolFields,
    template_tools,
)
from twostroke.server.state.served_model import ServedModel


async def chat_call(model: ServedModel, body: ChatCompletionRequest) -> Call:
    """What a chat asks for; a large one is read on a thread.

    Raises:
        InvalidRequestError: A value is out of its range, or fields do not go together.
    """
    return await beside_loop(partial(_read, model, body), slow=body.is_large)


def _read(model: ServedModel, body: ChatCompletionRequest) -> Call:
    params = body.to_params(model.client.info.sampling_defaults)
    template = model.chat_encoder.template
    kwargs, effort = body.chat_template_kwargs, body.reasoning_effort
    variables, ignored = template_variables(template, kwargs, effort)
    if params.thinking_token_budget is not None and model.reasoning_parser is None:
        params = replace(params, thinking_token_budget=None)
        ignored.append("thinking_token_budget")
    tools, context = body.offered_tools(), None
    if body.is_assembled:
        rank = context_ranking(model, body, params.max_tokens)
        messages = template_messages(body.messages)
        context = chat_context(body, rank)
    else:
        messages = bounded_messages(model, body.messages)
    turn = turn_options(body.add_generation_prompt, body.continue_final_message)
    return Call(
        messages=messages,
        rendering={**turn, **variables, "tools": template_tools(tools.values()) or None},
        params=params,
        tools=_callable_tools(body, tools) if tools else None,
        max_calls=1 if body.parallel_tool_calls is False else None,
        form_names=form_names(body.asked_forms()),
        context=context,
        add_special_tokens=bool(body.add_special_tokens),
        truncate_to=body.truncate_prompt_tokens,
        prediction="" if body.prediction is None else body.prediction.text(),
        priority=body.priority or 0,
        ttft_target=None if body.deadline_ms is None else body.deadline_ms / 1000,
        cache_salt=body.cache_salt or "",
        labels=body.labels(),
        ignored=ignored,
    )


def _callable_tools(body: ChatCompletionRequest, tools: Mapping[int, ToolFields]) -> CallableTools:
    """What the answer may call of ``tools``, which are by their places in the request."""
    choice = body.tool_choice
    chosen = choice if isinstance(choice, ToolChoiceFields) else None
    # The switch of vLLM for answers, where a client gives it, is that for calls, too.
    switch = (body.structured_outputs or {}).get(CLOSING_SWITCH)
    return CallableTools(
        [tool.as_callable(place) for place, tool in tools.items()],
        must_call=choice == "required" or (chosen is not None and chosen.mode == "required"),
        only=None if chosen is None else chosen.name,
        closing="listed" if switch is None else "all" if switch else "none",
    )
