"""Greedy speculative decoding with two models, for engines that leave the loop to their callers.

As llama.cpp's ``speculative-simple`` does it: the draft model guesses a few tokens one by one, the
target scores all of them in one batch, and what equals the target's likeliest token is kept.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Entry = tuple[int, int, int, bool]  # token, position, sequence, whether the next token is wanted


class Decodes(Protocol):
    """A model with a KV cache for one sequence."""

    def decode(self, entries: list[Entry]) -> list[int]:
        """Compute tokens; the likeliest next tokens of the wanted ones."""
        ...

    def forget(self, start: int) -> None:
        """Drop keys and values from this position on."""
        ...


def speculate(
    target: Decodes,
    draft: Decodes,
    prompt: Sequence[int],
    output_len: int,
    most: int,
    take: Callable[[list[int]], None],
) -> None:
    """The target's greedy answer, with up to ``most`` drafts in each of its passes.

    Args:
        take: Gets each pass's tokens as they are known, ``output_len`` in all.
    """
    known = list(prompt)
    known += target.decode(_entries(known, 0))
    take(known[-1:])
    num_drafted = 0  # tokens whose keys and values the draft model has
    while (left := output_len + len(prompt) - len(known)) > 0:
        guesses: list[int] = []
        while len(guesses) < min(most, left - 1):
            text = known + guesses
            guesses += draft.decode(_entries(text, num_drafted))
            num_drafted = len(text)
        first = len(known) - 1
        rows = [(token, first + i, 0, True) for i, token in enumerate([known[-1], *guesses])]
        drawn = target.decode(rows)
        right = 0
        while right < len(guesses) and guesses[right] == drawn[right]:
            right += 1
        known += drawn[: right + 1]
        target.forget(len(known) - 1)
        if num_drafted > len(known) - 1:
            num_drafted = len(known) - 1
            draft.forget(num_drafted)
        take(drawn[: right + 1])


def _entries(tokens: Sequence[int], start: int) -> list[Entry]:
    """Those from ``start`` on; what follows the last one is wanted."""
    last = len(tokens) - 1
    return [(tokens[place], place, 0, place == last) for place in range(start, len(tokens))]
