"""What a step's duration depends on: made by the simulated executor, read by a cost model."""

from __future__ import annotations

from typing import NamedTuple

# Steps after one that prefills which may be told apart from later ones.
SETTLING = 12


class StepShape(NamedTuple):
    """What a step computes, and what went before.

    Attributes:
        decode_requests: Requests that compute one token.
        decode_context: Tokens that those attend to together, themselves included.
        prefill: New tokens, and tokens cached before them, of each chunk of a prompt.
        sampled: Requests that draw a token.
        since_prefill: 1 in the first step after one that prefills, 2 in the next, and so on; 0
            later, and where the cost model does not tell these steps apart.
        drafts: Draft tokens that the decoding requests verify, all together.
        draft_rounds: Draft tokens that are made for each request once it has drawn.
        after_idle: Whether the engine was idle before the step; ``False`` also where the cost model
            does not tell these steps apart.
        draft_prefill: Prompts that a draft model computes in this step, written as in ``prefill``:
            whole ones, when their requests first draft.
    """

    decode_requests: int
    decode_context: int
    prefill: tuple[tuple[int, int], ...]
    sampled: int
    since_prefill: int = 0
    after_idle: bool = False
    drafts: int = 0
    draft_rounds: int = 0
    draft_prefill: tuple[tuple[int, int], ...] = ()
