"""From a chat request to what the engine is asked; other dialects' requests come this way too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import Caller
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.encoding import beside_loop
from twostroke.server.openai.answer_form import form_names
from twostroke.server.openai.chat_prompt import ChatPrompt, chat_prompt, prediction
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.template_variables import template_variables
from twostroke.server.openai.tools.call_form import calls_of_chat, constrain_answer
from twostroke.server.state.served_model import ServedModel

BUDGET = "thinking_token_budget"


class ChatCall(NamedTuple):
    """What the engine is asked, and how its answer is read.

    Attributes:
        ignored: Fields of the chat that change nothing for this model.
    """

    requests: list[GenerationRequest]
    params: SamplingParams
    prompt: ChatPrompt
    reading: AnswerReading
    ignored: list[str]


async def chat_call(
    model: ServedModel,
    body: ChatCompletionRequest,
    request_id: str,
    caller: Caller,
) -> ChatCall:
    """The engine's request for a chat.

    Raises:
        InvalidRequestError: The chat is malformed, or asks for what the model or the grammar
            library cannot do.
        RequestTooLargeError: The prompt cannot fit.
        QueueFullError: Too many compilations wait.
    """
    large = body.is_large
    defaults = model.client.info.sampling_defaults
    params = await beside_loop(partial(body.to_params, defaults), slow=large)
    given_variables = partial(
        template_variables,
        model.chat_encoder.template,
        body.chat_template_kwargs,
        body.reasoning_effort,
    )
    variables = await beside_loop(given_variables, slow=large)
    ignored = list(variables.ignored)
    if params.thinking_token_budget is not None and model.reasoning_parser is None:
        params = replace(params, thinking_token_budget=None)
        ignored.append(BUDGET)
    for_template = {**variables.values, "tools": body.prompt_tools}
    prompt = await chat_prompt(model, body, params, for_template, request_id, caller)
    max_calls = 1 if body.parallel_tool_calls is False else None
    reading = AnswerReading(model, body.callable_tools, prompt.token_ids, max_calls)
    with form_names(body.asked_forms()).applied():
        calls = calls_of_chat(body)
        params = await constrain_answer(model, calls, reading, params, caller.tenant)
    expected = await prediction(model, body)
    requests = body.engine_requests(request_id, [prompt.token_ids], params, expected)
    return ChatCall(requests, params, prompt, reading, ignored)
