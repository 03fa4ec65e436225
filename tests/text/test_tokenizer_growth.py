"""Protects: a tokenizer that makes any text long is refused when it is loaded, not at a prompt."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.text.tiny_tokenizers import byte_level
from twostroke.core.errors import ModelLoadError
from twostroke.text.tokenizer import Tokenizer

MIB = 2**20


def prepend(size: int) -> dict[str, Any]:
    return {"type": "Prepend", "prepend": "x" * size}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


def charsmap(*texts: str) -> dict[str, Any]:
    """sentencepiece's table with an empty trie."""
    blob = (8).to_bytes(4, "little") + bytes(8) + "\0".join(texts).encode()
    encoded = base64.b64encode(blob).decode()
    return {"type": "Precompiled", "precompiled_charsmap": encoded}


def template(*ids: int) -> dict[str, Any]:
    """A post-processor that begins each text with some tokens, all of them one special one."""
    token = {"id": "x", "ids": list(ids), "tokens": ["x"] * len(ids)}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}, text]
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {"single": single, "pair": pair, "special_tokens": {"x": token}}
    return {"type": "TemplateProcessing", **special}


def load(folder: Path, **parts: dict[str, Any]) -> Tokenizer:
    tokenizer = {**json.loads(byte_level().to_str()), **parts}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Tokenizer.from_folder(folder)


DOUBLED = [replace({"String": "a"}, "aa")] * 30
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a prepended text": ({"normalizer": prepend(10 * MIB)}, "puts 10485760 characters"),
    "one in parts": ({"normalizer": sequence(*[prepend(999)] * 2)}, "puts 1998 characters"),
    "one in sequences": ({"normalizer": sequence(sequence(prepend(2000)))}, "puts 2000 char"),
    "a text for a letter": (
        {"normalizer": replace({"Regex": "^"}, "x" * MIB)},
        r"can make 1.05e\+06 characters",
    ),
    "doubling": ({"normalizer": sequence(*DOUBLED)}, r"can make 1.07e\+09 characters"),
    "a table": ({"normalizer": charsmap("x" * MIB)}, r"can make 1.05e\+06 characters"),
    "an answer's text": (
        {"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "x" * MIB)]}},
        "the decoder of .* can make",
    ),
    "tokens": ({"post_processor": template(*[1] * 1000)}, "adds 1000 tokens"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_makes_any_text_long_is_refused(name: str, tmp_path: Path) -> None:
    """A single letter took 13 s and a gigabyte where 10 MB were put before it."""
    parts, message = HOSTILE[name]
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(tmp_path, **parts)
    assert caught.value.hint and "tokenizer.json" in str(caught.value)


def test_what_published_tokenizers_add_is_accepted(tmp_path: Path) -> None:
    spaces = replace({"String": " "}, "\u2581")
    parts = sequence(prepend(1), spaces, replace({"Regex": r"\s+"}, " "), {"type": "NFKC"})
    tokenizer = load(tmp_path, normalizer=parts, post_processor=template(1, 2, 3))
    assert tokenizer.encode("the dog")[:3] == [1, 2, 3]
    assert load(tmp_path, normalizer=charsmap("x" * 18, "a")).vocab_size
