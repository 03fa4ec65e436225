"""What a step computes, as far as its duration depends on it: made by the simulated executor, read
by a cost model.
"""

from __future__ import annotations

from typing import NamedTuple

# Steps after one that prefills which may be told apart from later ones.
SETTLING = 12


class StepShape(NamedTuple):
    """What a step computes, and what went before. decode: requests with one new token. prefill:
    chunks.
    """

    decode_requests: int  # requests that compute one token
    decode_context: int  # sum over them of tokens attended to (cached + 1)
    prefill: tuple[tuple[int, int], ...]  # (new tokens, tokens cached before), per chunk
    sampled: int  # requests that draw a token
    since_prefill: int = (
        0  # 1: the first step after one that prefills, ...; 0: later, or nobody tells them apart
    )
    after_idle: bool = False  # nobody was there before it, or: nobody tells such steps apart
