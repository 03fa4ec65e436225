"""What a step added to an answer: the stream of these is the answer."""

from __future__ import annotations

import msgspec

from twostroke.core.distribution import Distribution
from twostroke.core.errors import ErrorMessage
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.prefix_hit import PrefixHit
from twostroke.core.request import FinishReason, Request


class RequestOutput(msgspec.Struct):
    """What one step added to one sample of a request. The stream of these is the answer.

    Attributes:
        request_id: The id the client knows; ``index`` tells the samples apart.
        token_ids: New tokens.
        text: New text: complete characters only, stop strings never leaked.
        logprobs: One entry per new token, where asked for.
        distribution: The first new token's, with a request's first tokens where asked for.
        vector: Comes with the only output of a request for one: packed, see ``core/pooling.py``.
        prompt_logprobs: For the prompt's tokens but the first, where asked for: in order, in pieces
            as the prompt is computed, the last piece with the first token or before.
        finish_reason: Set on the last output of a sample.
        stop_reason: The stop string or stop token that ended it; ``None`` for EOS.
        error: Set when ``finish_reason`` is ``ERROR``, or ``ABORT`` against the client's wish
            (shutdown).
        draft_token_ids: Drafts that the step verified for it.
        num_accepted_drafts: How many of them are its first new tokens.
        num_used_prompt_tokens: Prompt tokens computed or found in the cache by then: fewer than
            there are if the request ended before its prompt was through.
        prefix_hit: How far the prefix cache had its prompt, of models with recurrent layers.
    """

    request_id: str
    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    text: str = ""
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: ErrorMessage | None = None
    num_used_prompt_tokens: int = 0
    draft_token_ids: list[int] = []
    num_accepted_drafts: int = 0
    vector: bytes | None = None
    distribution: Distribution | None = None
    prefix_hit: PrefixHit | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def sample_id(request_id: str, index: int, num_samples: int) -> str:
    """What the engine calls one sample of a request."""
    return request_id if num_samples == 1 else f"{request_id}#{index}"


def make_output(
    request: Request,
    token_ids: list[int],
    finish_reason: FinishReason | None = None,
    error: ErrorMessage | None = None,
) -> RequestOutput:
    """What a request has got: new tokens, and, if it ends with them, why."""
    return RequestOutput(
        request.spec.parent_id,
        request.spec.index,
        token_ids,
        request.num_prompt_tokens,
        request.num_cached_tokens,
        finish_reason=finish_reason,
        error=error,
        num_used_prompt_tokens=request.num_used_prompt_tokens,
        prefix_hit=request.prefix_hit,
    )
