"""Keeps the grammars used last; no tenant may crowd out those of others."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

from twostroke.constraints.constraint import Grammar

LOOKS_BETWEEN = 16  # grammars grow while they are used, too


class _Size(NamedTuple):
    """What is bounded: grammars, characters of their descriptions, and bytes of their states."""

    grammars: int
    chars: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Entry:
    tenant: str
    num_chars: int
    grammar: Grammar

    @property
    def size(self) -> _Size:
        return _Size(1, self.num_chars, self.grammar.num_bytes)


class GrammarCache:
    """Grammars by description. What is given up goes on for answers that hold it, and is still
    found while one of them does. The caller sees to it that one thread at a time is here.

    Args:
        max_grammars: How many are kept.
        max_chars: Limit on the length of all their descriptions together.
        max_bytes: That all of them hold, which grows with what is written in their forms.
    """

    def __init__(self, max_grammars: int, max_chars: int, max_bytes: int) -> None:
        self._limits = _Size(max_grammars, max_chars, max_bytes)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the one used last is at the end
        self._in_use: WeakValueDictionary[str, Grammar] = WeakValueDictionary()
        self._num_found = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, description: str) -> Grammar | None:
        entry = self._entries.get(description)
        if entry is None:
            return self._in_use.get(description)
        self._entries.move_to_end(description)
        self._num_found += 1
        if self._num_found % LOOKS_BETWEEN == 0:
            self._give_up()
        return entry.grammar

    def keep(self, tenant: str, description: str, grammar: Grammar) -> None:
        """Keep a grammar, and give up others where there are too many."""
        self._entries[description] = _Entry(tenant, len(description), grammar)
        self._entries.move_to_end(description)
        self._in_use[description] = grammar
        self._give_up()

    def _give_up(self) -> None:
        while (measure := self._exceeded()) is not None and len(self._entries) > 1:
            del self._entries[self._to_give_up(measure)]

    def _exceeded(self) -> int | None:
        """Which of the limits is exceeded: its place in ``_Size``."""
        totals = map(sum, zip(*(entry.size for entry in self._entries.values())))
        over = (i for i, (total, limit) in enumerate(zip(totals, self._limits)) if total > limit)
        return next(over, None)

    def _to_give_up(self, measure: int) -> str:
        """The least recently used grammar of the tenant that holds most of ``measure``."""
        held: Counter[str] = Counter()
        for entry in self._entries.values():
            held[entry.tenant] += entry.size[measure]
        largest = max(held, key=lambda tenant: held[tenant])
        own = (name for name, entry in self._entries.items() if entry.tenant == largest)
        return next(own)
