"""What a step computes, as far as its duration depends on it: made by the simulated executor, read by a cost model."""

from __future__ import annotations

from typing import NamedTuple


class StepShape(NamedTuple):
    """What a step computes. decode: requests with one new token. prefill: chunks."""

    decode_requests: int  # requests that compute one token
    decode_context: int  # sum over them of tokens attended to (cached + 1)
    prefill: tuple[tuple[int, int], ...]  # (new tokens, tokens cached before), per chunk
    sampled: int  # requests that draw a token
