"""How tokenizers write bytes as token text: GPT-2's byte alphabet, and `<0xE4>` byte fallback."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping: printable bytes stand for themselves, the rest for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(unprintable)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level token.

    An added token may have characters outside the alphabet: its bytes are its UTF-8.
    """
    try:
        return bytes([_ALPHABET[c] for c in piece])
    except KeyError:
        return piece.encode()


def fallback_byte(piece: str) -> int | None:
    """The byte that `<0xNN>` stands for; `None` for any other token."""
    match = _FALLBACK.fullmatch(piece)
    return None if match is None else int(match[1], 16)


def decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    """The tokenizer's decoder as a flat list of its steps, as in `tokenizer.json`."""
    if backend.decoder is None:
        return []
    # Only saving shows what is inside; of the decoder alone, since the whole takes seconds.
    return _flatten(json.loads(backend.decoder.__getstate__()))


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def space_symbol(steps: list[dict[str, Any]]) -> str | None:
    """The character that the decoder replaces by a space (usually U+2581), if there is one."""
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step.get("content") == " ":
            symbol = step["pattern"].get("String")
            return None if symbol is None else str(symbol)
    return None
