"""From a call to what the engine is asked, for every dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from twostroke.core.generation_request import GenerationRequest
from twostroke.gateway.caller import Caller
from twostroke.server.calls.call import Call
from twostroke.server.calls.form import constrain_answer
from twostroke.server.calls.prompt import Prompt, make_prompt
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.encoding import check_length, encode_text
from twostroke.server.state.served_model import ServedModel

CheckPrompt = Callable[[ServedModel, Sequence[int]], None]


def leave_to_engine(model: ServedModel, prompt: Sequence[int]) -> None:
    """Check nothing: the dialect has no limits of its own, and the engine reports its."""


class PreparedCall(NamedTuple):
    """What the engine is asked, and how its answers are read."""

    request: GenerationRequest
    prompt: Prompt
    reading: AnswerReading


async def prepare(
    model: ServedModel,
    call: Call,
    request_id: str,
    caller: Caller,
    check_prompt: CheckPrompt = leave_to_engine,
) -> PreparedCall:
    """The engine's request for a call.

    Args:
        check_prompt: Raises what the dialect says of a prompt, before a form is compiled.

    Raises:
        InvalidRequestError: The template refuses the messages, or the call asks for what the model
            or the grammar library cannot do.
        RequestTooLargeError: The prompt cannot fit.
        QueueFullError: Too many compilations wait.
    """
    prompt = await make_prompt(model, call, request_id, caller)
    check_prompt(model, prompt.token_ids)
    schemas = None if call.tools is None else call.tools.schemas
    reading = AnswerReading(model, schemas, prompt.token_ids, call.max_calls)
    call = replace(call, params=reading.with_markers(call.params))
    with call.form_names.applied():
        params = await constrain_answer(model, call, reading, caller.tenant)
    request = GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        params=params,
        priority=call.priority,
        cache_salt=call.cache_salt,
        labels=call.labels,
        prediction_token_ids=await _encode_prediction(model, call) if call.prediction else [],
        ttft_target=call.ttft_target,
    )
    return PreparedCall(request, prompt, reading)


async def _encode_prediction(model: ServedModel, call: Call) -> list[int]:
    """The token ids of the expected answer; no more are kept than an answer can have."""
    check_length(model, len(call.prediction), "prediction")
    tokens = await encode_text(model, call.prediction, add_special_tokens=False)
    return tokens[: model.client.info.max_model_len]


def fit_answer(
    model: ServedModel, request: GenerationRequest, max_tokens: int | None
) -> GenerationRequest:
    """A request whose ``max_tokens`` fit beside its prompt: the answer may fill the context.

    A prompt that leaves no room stays as it is, and is refused with the numbers.
    """
    room = model.client.info.longest_request - len(request.prompt_token_ids)
    if max_tokens is None or room < 1:
        return request
    return replace(request, params=replace(request.params, max_tokens=min(max_tokens, room)))
