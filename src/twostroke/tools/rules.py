"""Grammars in Lark's notation, rule by rule; special tokens in their texts are tokens."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twostroke.text.tokenizer import Tokenizer


class Rules:
    """Rules of a grammar, and the texts in it: special tokens are tokens, all else characters.

    ``TEXT`` is any text; special tokens are none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        special = sorted(tokenizer.special_texts, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._lines = ["%llguidance {}", "TEXT: /(.|\\n)*/"]

    def add(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def is_special(self, text: str) -> bool:
        """Whether a text is one special token."""
        return self._special.fullmatch(text) is not None

    def literal(self, text: str) -> str:
        """An expression for exactly this text; nothing for an empty one."""
        parts, position = [], 0
        for match in self._special.finditer(text):
            parts.append(quoted(text[position : match.start()]))
            parts.append(f"<[{self._tokenizer.backend.token_to_id(match[0])}]>")
            position = match.end()
        return " ".join(part for part in [*parts, quoted(text[position:])] if part)

    def after_text(self, marker: str, name: str = "opened") -> str:
        """An expression for any text that ends with the first ``marker``."""
        if self.is_special(marker):
            return f"TEXT {self.literal(marker)}"
        self._lines.append(f"{name}[lazy]: TEXT {quoted(marker)}")
        return name


def quoted(text: str) -> str:
    """A text as a literal; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""
