"""How tokenizers write bytes as token text: GPT-2's byte alphabet, and `<0xE4>` byte fallback."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping: printable bytes stand for themselves, the others for characters from U+0100
    on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level token; one with characters outside the alphabet (an added token) is its
    own UTF-8.
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
    """The tokenizer's decoder as a flat list of its steps, as they are written in
    `tokenizer.json`.
    """
    if backend.decoder is None:
        return []
    # Saving the decoder alone is the only way to look inside; the whole tokenizer would cost
    # seconds.
    return _flatten(json.loads(backend.decoder.__getstate__()))


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def space_symbol(steps: list[dict[str, Any]]) -> str | None:
    """The character that stands for a space in token texts (usually U+2581), if the decoder
    replaces one.
    """
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step.get("content") == " ":
            symbol = step["pattern"].get("String")
            return None if symbol is None else str(symbol)
    return None
