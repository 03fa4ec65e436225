"""What all routes of vectors do: encode their inputs, submit a request for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fastapi import Request

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.pooling import PoolingParams, resolve_pooling
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.observability.tracing import names
from twostroke.server.generation.generation import Generation
from twostroke.server.openai.embeddings.pooling_fields import make_pooling_requests
from twostroke.server.openai.embeddings.prompt_tokens import PoolingPrompt, PromptEncoder

RequestMaker = Callable[[str, Sequence[PoolingPrompt], PoolingParams], list[GenerationRequest]]


async def pooling_call(
    request: Request,
    prefix: str,
    encoder: PromptEncoder,
    inputs: Sequence[str | list[int]],
    params: PoolingParams,
    *,
    field: str = "input",
    ignored: Sequence[str] = (),
    make_requests: RequestMaker = make_pooling_requests,
) -> Generation:
    """A generation that has been submitted: one vector for each input.

    Args:
        prefix: The beginning of the request's id.
        encoder: Makes the prompts, for the model that runs them.
        field: What the API calls the inputs.
        ignored: Fields of the body that were ignored.

    Raises:
        InvalidRequestError: The model gives no such vector, or an input has no tokens.
        RequestTooLargeError: One is longer than the model's context.
    """
    model = encoder.model
    resolve_pooling(params, model.client.info.pooling, 0)  # before the work of encoding
    prompts = []
    for index, text in enumerate(inputs):
        param = field if len(inputs) == 1 else f"{field}[{index}]"
        prompts.append(await encoder.encode(text, param))
        await asyncio.sleep(0)  # other requests get their turn in between
    caller = caller_of(request.scope)
    caller.trace.stage(names.TOKENISE)
    request_id = name_request(request.scope, prefix)
    generation = Generation(
        model,
        caller,
        request_id,
        make_requests(request_id, prompts, params),
        streamed=False,
        ignored=ignored,
        gradual=True,
    )
    await generation.submit_rest()
    return generation
