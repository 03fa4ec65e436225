"""Stop strings in streamed text: found at once, never shown, at a cost linear in the text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of a call, shared by all its samples; one thread uses them.

    Each string has a Knuth-Morris-Pratt automaton, so that no choice of strings makes a step slow.
    Its table grows as far as the text of any sample has matched: strings that never begin to match
    cost nothing, and one that does is paid for once, not once a sample.

    Args:
        stop: Non-empty strings (`SamplingParams` has checked their number and length).
        include_stop: The stop string itself is part of the text; then nothing is held back.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        # Longest first, so that it wins where several end at the same character.
        self.strings = sorted(dict.fromkeys(stop), key=len, reverse=True)
        self.include_stop = include_stop
        # For each prefix of a string: the length of its longest proper suffix that is a prefix.
        self._tables = [[0] for _ in self.strings]

    def advance(self, states: list[int], char: str) -> str | None:
        """Move every automaton of one text by one character.

        Args:
            states: How many characters of each string the text ends with; brought up to date.

        Returns:
            The longest string that is complete now.
        """
        longest = None
        for i, string in enumerate(self.strings):
            state = states[i]
            while state and string[state] != char:
                state = self._fall_back(i, state)
            if string[state] == char:
                state += 1
            if state == len(string):
                longest = longest or string
                state = self._fall_back(i, state)
            states[i] = state
        return longest

    def _fall_back(self, index: int, state: int) -> int:
        """The longest shorter match that a match of ``state`` characters contains.

        Source: Knuth, Morris and Pratt, Fast pattern matching in strings (1977).
        """
        string, table = self.strings[index], self._tables[index]
        while len(table) < state:
            end, length = len(table), table[-1]
            while length and string[end] != string[length]:
                length = table[length - 1]
            table.append(length + (string[end] == string[length]))
        return table[state - 1]


class StopChecker:
    """Looks for stop strings in text that comes in pieces, however it is cut.

    The match is the one that is complete first, as if the text came character by character; of
    several that end together, the longest. Text that may be the start of a stop string is held
    back.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        # How many characters of each string the text now ends with.
        self._states = [0] * len(stops.strings)
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
        if not self._states:
            return text, None
        for i, char in enumerate(text):
            stop = self._stops.advance(self._states, char)
            if stop is not None and armed:
                return self._cut(text[: i + 1], stop), stop
        buffer = self._held + text
        if self._stops.include_stop:
            self._held = ""
            return buffer, None
        shown = len(buffer) - max(self._states)
        self._held = buffer[shown:]
        return buffer[:shown], None

    def flush(self) -> str:
        """The text still held back, when the output has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, stop: str) -> str:
        self.matched = stop
        buffer, self._held = self._held + text, ""
        return buffer if self._stops.include_stop else buffer[: len(buffer) - len(stop)]
