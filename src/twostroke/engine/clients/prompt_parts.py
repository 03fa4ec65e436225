"""Prompts that take several steps, as the events of these tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twostroke.observability.events import StepEvent


def prompt_parts(events: Sequence[StepEvent]) -> Iterator[tuple[str, int]]:
    """Calls of whose prompts steps have computed a part, and how many tokens are there.

    Of several samples the first computes the prompt.
    """
    for share in (share for event in events for share in event.scheduled):
        if share.num_prompt_tokens > 0 and not share.sampled:
            yield share.request_id.removesuffix("#0"), share.start + share.num_tokens
