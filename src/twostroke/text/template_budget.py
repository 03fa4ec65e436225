"""What one rendering of a chat template may use: steps, characters, seconds; counted before use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MappingView
from typing import Any

from jinja2.exceptions import SecurityError

# Turns of loops, calls and elements that filters go through, in one rendering together.
MAX_STEPS = 4_000_000
# Characters of one value, beside some for each character of the conversation; and of all together.
MAX_VALUE_CHARS = 2**20
CHARS_PER_INPUT_CHAR = 4
ALL_VALUES = 256
# Processor seconds. Steps and characters end nearly everything before; this ends the rest.
MAX_SECONDS = 4.0
STEPS_PER_LOOK = 64  # how often the time is looked up
_NUMBER_CHARS = 32


class RenderBudget:
    """Counts what a rendering uses, and raises ``SecurityError`` once it is too much.

    Whatever the template makes has a size: its characters once it is written out, every element as
    often as it occurs. No value may be larger than the bound, so whatever is done with one is
    bounded, too.

    Args:
        num_chars: Characters of the conversation.
    """

    def __init__(self, num_chars: int) -> None:
        self.max_chars = MAX_VALUE_CHARS + CHARS_PER_INPUT_CHAR * num_chars
        self._chars_left = ALL_VALUES * self.max_chars
        self._steps_left = MAX_STEPS
        self._ends = time.thread_time() + MAX_SECONDS
        # By identity; the container is kept, so that no other takes its place.
        self._sizes: dict[int, tuple[int, object]] = {}

    def take_steps(self, count: int = 1, num_chars: int = 0) -> None:
        """Count steps, and characters that they write."""
        before = self._steps_left
        self._steps_left = left = before - count
        self._chars_left -= num_chars
        if left < 0 or self._chars_left < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps, or writes without end")
        if left // STEPS_PER_LOOK != before // STEPS_PER_LOOK and time.thread_time() > self._ends:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")

    def note_steps(self, count: int, num_chars: int) -> None:
        """Count them without an error, which the next ``take_steps`` raises."""
        self._steps_left -= count
        self._chars_left -= num_chars

    def take_chars(self, count: int) -> None:
        """Count characters of a value that is about to be made or written."""
        self._chars_left = left = self._chars_left - count
        if count > self.max_chars:
            raise SecurityError(f"a value of it has more than {self.max_chars} characters")
        if left < 0:
            raise SecurityError("it makes too many long values")

    def size(self, value: object) -> int:
        """Characters of ``value`` written out, about; a container that is too large is refused."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            measured = self._sizes.get(id(value))
            if measured is None:
                measured = self._sizes[id(value)] = (self._measure(value), value)
            return measured[0]
        if isinstance(value, MappingView):
            return self._measure(tuple(value))  # type: ignore[arg-type]
        return max(_NUMBER_CHARS, value.bit_length()) if isinstance(value, int) else _NUMBER_CHARS

    def _measure(self, value: Iterable[object]) -> int:
        total = 2
        for item in value:
            total += 2 + self.size(item)
            if isinstance(value, Mapping):
                total += 2 + self.size(value[item])
            if total > self.max_chars:
                raise SecurityError(f"a value of it has more than {self.max_chars} characters")
        return total


class CountedItems:
    """The items of an iterable, each a step.

    Args:
        num_chars: That each turn writes whatever the item is.
    """

    def __init__(self, items: Any, budget: RenderBudget, num_chars: int = 0) -> None:
        self._items, self._budget, self._num_chars = items, budget, num_chars

    def __iter__(self) -> Iterator[Any]:
        count = 0
        try:
            for item in self._items:
                count += 1
                yield item
                if count == STEPS_PER_LOOK:
                    count = 0
                    self._budget.take_steps(STEPS_PER_LOOK, STEPS_PER_LOOK * self._num_chars)
        finally:
            self._budget.note_steps(count, count * self._num_chars)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)
