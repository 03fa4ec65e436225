"""Special tokens that are written out in a text, and breaking them up so that they are plain."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CHUNK = 2**16  # characters searched at once: another thread may run between two
_MAX_BREAKS = 20  # of one text; those that remain overlap in ways that no tokenizer's do


class SpecialTexts:
    """The texts of special tokens, to be found in other texts.

    Args:
        texts: One of a single character cannot be broken up, and is left out.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(text for text in texts if len(text) > 1)
        self._longest = max(map(len, self.texts), default=0)
        self._pattern = re.compile(_any_of(self.texts)) if self.texts else None
        self._first = frozenset(text[0] for text in self.texts)
        self._last = frozenset(text[-1] for text in self.texts)

    def is_in(self, text: str) -> bool:
        """Whether one of them is written out in ``text``."""
        if self._pattern is None:
            return False
        return any(
            self._pattern.search(text, start, start + _CHUNK + self._longest)
            for start in range(0, len(text), _CHUNK)
        )

    def broken(self, text: str, gap: str) -> str:
        """``text`` with ``gap`` after the first character of each."""
        if self._pattern is None:
            return text
        for _ in range(_MAX_BREAKS):  # a second time for those that overlap
            text, count = self._pattern.subn(lambda match: match[0][0] + gap + match[0][1:], text)
            if not count:
                break
        return text

    def halves(self, texts: Iterable[str]) -> frozenset[str]:
        """Ends and beginnings of ``texts`` that a template may join to one of them."""
        ends, beginnings = set[str](), set[str]()
        for whole in texts:
            text, longest = whole.strip(), self._longest - 1
            if not self._first.isdisjoint(text[-longest:]):
                ends |= {text[-k:] for k in range(1, longest + 1)}
            if not self._last.isdisjoint(text[:longest]):
                beginnings |= {text[:k] for k in range(1, longest + 1)}
        if not ends or not beginnings:
            return frozenset()
        pairs = ((t[:k], t[k:]) for t in self.texts for k in range(1, len(t)))
        joined = [pair for pair in pairs if pair[0] in ends and pair[1] in beginnings]
        return frozenset(half for pair in joined for half in pair if len(half) > 1)


def _any_of(texts: Iterable[str]) -> str:
    """A pattern of the longest of ``texts``; a tree, since there may be thousands."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _written(tree)


def _written(tree: dict[str, Any]) -> str:
    branches = [re.escape(first) + _written(rest) for first, rest in tree.items() if first]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + "?" * ("" in tree)
