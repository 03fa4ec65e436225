"""When a request has said enough, judged by its tokens (stop strings are judged on text, by the
output processor).
"""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a request ends, and the client's stop token if one did it."""

    reason: FinishReason
    token_id: int | None = None


def check_stop(request: Request) -> Stop | None:
    """Judge a request by its last token. A stop token counts only from ``min_tokens`` on."""
    token = request.token_ids[-1]
    if token in request.stop_token_ids and request.num_output_tokens >= request.params.min_tokens:
        return Stop(FinishReason.STOP, token if token in request.params.stop_token_ids else None)
    if request.num_tokens >= request.max_total_tokens:
        return Stop(FinishReason.LENGTH)
    return None


def cut_at_stop(request: Request, tokens: list[int]) -> tuple[list[int], Stop | None]:
    """Those of its last ``tokens`` that a request keeps, and what ends it: it loses those behind
    the one that does.
    """
    known = request.token_ids
    del known[len(known) - len(tokens) :]
    for kept, token in enumerate(tokens, 1):
        known.append(token)
        if stop := check_stop(request):
            return tokens[:kept], stop
    return tokens, None
