"""Prompts and answers of recent requests, where ``--inspect-content`` asks for them.

Only tokens are kept, with the log-probabilities that the request itself asked for. Text is made of
them where somebody looks.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.observer import ObservedStep
from twostroke.sampling.random import uniforms
from twostroke.text.tokenizer import Tokenizer

MAX_BYTES = 32 * 2**20
OVERHEAD = 512  # bytes of an entry beside its tokens
MAX_TOKENS = 4096  # of one answer
_LOOK_BACK = 8  # tokens before a page, in which a character may begin that it ends


class TokenPage(msgspec.Struct):
    """A part of a request's tokens: the prompt's, then the answer's, a column each.

    Attributes:
        begin: Position of the first of them.
        texts: None for a token that is part of a character which a later one ends.
        special: Indices of special tokens.
        logprobs: Those of output tokens, where the request asked for them; else None.
        draws: The uniform number that picked an output token, from seed and position; None for
            prompt tokens, and where nothing was drawn by chance.
        seed: In decimal digits: it may have 64 bits, which no JSON number of a browser has.
    """

    num_prompt: int
    num_output: int
    begin: int
    ids: list[int]
    texts: list[str | None]
    special: list[int]
    logprobs: list[float | None]
    draws: list[float | None]
    seed: str
    temperature: float


@dataclass(slots=True)
class RequestContent:
    """One request's tokens; while it runs they are read from ``request``."""

    tenant: str
    num_prompt: int
    seed: int
    temperature: float
    request: Request | None
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))

    @property
    def num_bytes(self) -> int:
        return OVERHEAD + 4 * (len(self.tokens) + len(self.logprobs))


class ContentBook:
    """Implements ``Observer``: keeps the tokens of running requests and of the latest that ended.

    The engine's thread fills it, any thread reads.

    Args:
        max_bytes: Limit for requests that have ended; beyond it the oldest are dropped.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._live: dict[str, RequestContent] = {}
        self._ended: OrderedDict[str, RequestContent] = OrderedDict()
        self.num_bytes = 0

    def on_add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._live[request.request_id] = RequestContent(
                request.tenant,
                request.num_prompt_tokens,
                request.spec.seed,
                request.params.temperature,
                request,
            )

    def on_step(self, step: ObservedStep) -> None:
        for request_id, positions in step.result.logprobs.items():
            if (content := self._live.get(request_id)) is not None:
                content.logprobs.extend(position.chosen.logprob for position in positions)
        for request in step.ended:
            self._end(request)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        for request in requests:
            self._end(request)

    def close(self) -> None:
        """What is kept stays readable."""

    def find(self, request_id: str) -> RequestContent | None:
        """What is kept of a request."""
        return self._live.get(request_id) or self._ended.get(request_id)

    def _end(self, request: Request) -> None:
        content = self._live.get(request.request_id)
        if content is None:
            return
        content.tokens = array("i", request.token_ids)
        del content.logprobs[request.num_output_tokens :]  # what came after the end
        content.request = None
        if content.num_bytes <= self._max_bytes:
            self._ended[request.request_id] = content
            self.num_bytes += content.num_bytes
        del self._live[request.request_id]
        while self.num_bytes > self._max_bytes:
            _, oldest = self._ended.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


def token_page(content: RequestContent, tokenizer: Tokenizer, begin: int, count: int) -> TokenPage:
    """The tokens from position ``begin`` on, at most ``count``."""
    request = content.request
    # A request that ends meanwhile has put its tokens here before it let go of itself.
    known: Sequence[int] = content.tokens if request is None else request.token_ids
    num_tokens = len(known)
    begin = min(begin, num_tokens)
    end = min(num_tokens, begin + min(count, MAX_TOKENS))
    before = max(0, begin - _LOOK_BACK)
    looked_at = list(known[before:end])
    ids = looked_at[begin - before :]
    return TokenPage(
        num_prompt=content.num_prompt,
        num_output=num_tokens - content.num_prompt,
        begin=begin,
        ids=ids,
        texts=_texts(looked_at, tokenizer)[begin - before :],
        special=[index for index, token in enumerate(ids) if token in tokenizer.special_ids],
        logprobs=_logprobs(content, begin, end),
        draws=_draws(content, begin, end),
        seed=str(content.seed),
        temperature=content.temperature,
    )


def _texts(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str | None]:
    """Each token's text; a character of several tokens belongs to the last of them."""
    texts: list[str | None] = []
    rest = b""
    for token in tokens:
        data = tokenizer.token_bytes(token)
        whole = rest + data
        try:
            texts.append(whole.decode())
            rest = b""
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and len(whole) - error.start < 4:
                text, rest = whole[: error.start].decode(errors="replace"), whole[error.start :]
                texts.append(text or None)
            else:
                texts.append(whole.decode(errors="replace"))
                rest = b""
    return texts


def _logprobs(content: RequestContent, begin: int, end: int) -> list[float | None]:
    known = content.logprobs
    indices = range(begin - content.num_prompt, end - content.num_prompt)
    return [
        round(known[index], 5) if 0 <= index < len(known) and math.isfinite(known[index]) else None
        for index in indices
    ]


def _draws(content: RequestContent, begin: int, end: int) -> list[float | None]:
    draws: list[float | None] = [None] * (end - begin)
    first = max(begin, content.num_prompt)
    if first < end and content.temperature > 0:
        positions = np.arange(first, end, dtype=np.int64)
        seeds = np.full(end - first, content.seed & (2**64 - 1), dtype=np.uint64)
        draws[first - begin :] = uniforms(seeds, positions).tolist()
    return draws
