"""When a request ends, judged by its tokens. Stop strings are judged on text, in the engine."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a request ends, and the client's stop token if one did it."""

    reason: FinishReason
    token_id: int | None = None


def check_stop(request: Request) -> Stop | None:
    """Judge a request by its last token. A stop token counts only from ``min_tokens`` on.

    The model's end always counts where the answer has a form: before ``min_tokens`` it is drawn
    only if nothing else may follow.
    """
    token, params = request.token_ids[-1], request.params
    has_form = params.structured_outputs is not None
    min_tokens = 0 if has_form and token in request.spec.eos_token_ids else params.min_tokens
    if token in request.stop_token_ids and request.num_answer_tokens >= min_tokens:
        return Stop(FinishReason.STOP, token if token in request.params.stop_token_ids else None)
    if request.num_tokens >= request.max_total_tokens:
        return Stop(FinishReason.LENGTH)
    return None


def append_until_stop(request: Request, tokens: list[int]) -> tuple[list[int], Stop | None]:
    """Append sampled tokens up to the first that ends the request; returns those, and the end."""
    for count, token in enumerate(tokens, 1):
        request.token_ids.append(token)
        if stop := check_stop(request):
            return tokens[:count], stop
    return tokens, None
