"""What prompts share, and how much of it the cache has lost again."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.doctor.window import StepWindow


class Reuse(NamedTuple):
    """Prompt tokens of a window.

    Attributes:
        prompt_tokens: Tokens of all prompts.
        cached_tokens: Found in the cache.
        computed_tokens: The rest.
        lost_tokens: Those of the rest that an earlier prompt of the window began with, too, and
            whose computation had ended: a cache that evicts nothing would have had them.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    lost_tokens: int

    @property
    def lost_share(self) -> float:
        return self.lost_tokens / max(1, self.computed_tokens)

    @property
    def hit_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)


def reuse_of(window: StepWindow) -> Reuse:
    """Count what was computed twice, by the named beginnings of prompts."""
    size = window.settings.block_size
    computed: dict[int, float] = {}  # when a beginning was there for the first time
    prompt = cached = lost = 0
    for request in sorted(window.requests, key=lambda each: each.scheduled):
        prompt += request.prompt
        cached += request.cached
        shared = 0
        for tokens, key in request.prefixes(size):
            if key in computed and computed[key] <= request.scheduled:
                shared = max(shared, tokens)
            elif request.first_token is not None:
                computed.setdefault(key, request.first_token)
        # The last token of a prompt is always computed.
        lost += max(0, min(shared, request.prompt - 1) - request.cached)
    return Reuse(prompt, cached, prompt - cached, lost)
