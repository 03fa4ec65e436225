"""Stop strings in streamed text: found at once, never shown, at a cost linear in the text."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Looks for stop strings in text that comes in pieces, however it is cut.

    The match is the one that is complete first, as if the text came character by character; of
    several that end together, the longest. Text that may be the start of a stop string is held
    back. Each string is followed by its own Knuth-Morris-Pratt automaton, so that no choice of
    strings makes a step slow.

    Args:
        stop: Non-empty strings (`SamplingParams` has checked their number and length).
        include_stop: The stop string itself is part of the text; then nothing is held back.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        # Longest first, so that it wins where several end at the same character.
        self._stops = sorted(dict.fromkeys(stop), key=len, reverse=True)
        self._failures = [_failure_table(s) for s in self._stops]
        # How many characters of each string the text now ends with.
        self._states = [0] * len(self._stops)
        self._include = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Add text; returns what may be shown, and the stop string that is complete now, if any.

        Args:
            armed: Without it, stop strings that end in this text are let through (`min_tokens`);
                one that starts in it and ends later still counts.

        Returns:
            After a match: no text, and the same match again.
        """
        if self.matched is not None:
            return "", self.matched
        if not self._stops:
            return text, None
        for i, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None and armed:
                return self._cut(text[: i + 1], stop), stop
        buffer = self._held + text
        shown = len(buffer) - (0 if self._include else max(self._states))
        if self._include:
            self._held = ""
            return buffer, None
        self._held = buffer[shown:]
        return buffer[:shown], None

    def flush(self) -> str:
        """The text still held back, when the output has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Move every automaton by one character; the longest string that is complete now."""
        longest = None
        for i, stop in enumerate(self._stops):
            state, failure = self._states[i], self._failures[i]
            while state and stop[state] != char:
                state = failure[state - 1]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                longest = longest or stop
                state = failure[state - 1]
            self._states[i] = state
        return longest

    def _cut(self, text: str, stop: str) -> str:
        self.matched = stop
        buffer, self._held = self._held + text, ""
        return buffer if self._include else buffer[: len(buffer) - len(stop)]


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of `pattern`: the length of its longest proper suffix that is a prefix.

    Source: Knuth, Morris and Pratt, Fast pattern matching in strings (1977).
    """
    table = [0] * len(pattern)
    state = 0
    for i in range(1, len(pattern)):
        while state and pattern[i] != pattern[state]:
            state = table[state - 1]
        if pattern[i] == pattern[state]:
            state += 1
        table[i] = state
    return table
