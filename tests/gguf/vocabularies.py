"""Small vocabularies of each kind, as metadata of GGUF files, and texts to encode with them.

    python -m tests.gguf.vocabularies FOLDER

writes files for llama.cpp: see ``benchmarks/gguf/llama_cpp_tokens.py``.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from benchmarks.gguf.writer import Value, write_gguf
from tests.text.tiny_tokenizers import TEXT
from twostroke.checkpoints.gguf.splitting_rules import SPLITTING_RULES
from twostroke.text.byte_tokens import byte_level_bytes

# What llama.cpp asks for before it reads a vocabulary.
MODEL: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
# No marks that combine with letters: llama.cpp splits some rules there otherwise than the models'
# makers, and composes none.
PIECES = (
    *("don't", "DON'T", "I'LL", "they're", "12345", "3.14159", "1,000,000", "x86_64"),
    *("naïve café", "straße", "你好世界", "ひらカナ", "한국어", "👩‍👩‍👧", "שלום", "Ωμέγα"),
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003"),
    *("...", "!!", "?", "</s>", "<tool call>", "/path/to", "a_b", "$5", "(x)", "=="),
    *("the", "The", " the", "dog", "prefill", "camelCase", "HTTPServer", "e.g."),
)


def texts() -> list[str]:
    """300 of them, pieces in random order, and all of ``TEXT``."""
    chance = random.Random(5)
    made = ["".join(chance.choices(PIECES, k=chance.randint(1, 12))) for _ in range(300)]
    return [*TEXT, *made]


def learn_merges(texts: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, one after the other; ties by text, so that it is always the same.

    The library's own trainer breaks ties by chance. Merges cross words, so that it matters where
    a rule ends them.
    """
    rows, merges = [list(text) for text in texts], list[tuple[str, str]]()
    for _ in range(count):
        pairs = Counter(pair for row in rows for pair in pairwise(row))
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        rows = [_merged(row, merges[-1]) for row in rows]
    return merges


def _merged(row: list[str], pair: tuple[str, str]) -> list[str]:
    merged, at = list[str](), 0
    while at < len(row):
        both = tuple(row[at : at + 2]) == pair
        merged.append("".join(row[at : at + 1 + both]))
        at += 1 + both
    return merged


@cache
def _byte_merges() -> list[tuple[str, str]]:
    by_byte = {byte: text for text in ByteLevel.alphabet() for byte in byte_level_bytes(text)}
    written = ["".join(by_byte[byte] for byte in text.encode()) for text in texts()[:120]]
    return learn_merges(written, 200)


def byte_level_metadata(rule: str) -> dict[str, Value]:
    """As GPT-2, words split by ``rule``."""
    merges = _byte_merges()
    pieces = [*sorted(ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    return {
        **MODEL,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": [*pieces, "<|end|>", "<|start|>", "<tool call>"],
        "tokenizer.ggml.token_type": [*[1] * len(pieces), 3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": len(pieces),
        "tokenizer.ggml.bos_token_id": len(pieces) + 1,
    }


def sentencepiece_metadata(*, prefixed: bool) -> dict[str, Value]:
    """As Llama 2 where a space is put first, else as Gemma."""
    written = [text.replace(" ", "▁") for text in TEXT]
    merges = ["".join(merge) for merge in learn_merges(written, 120)]
    pieces = [*merges, *sorted(set("".join(written)))]
    head = ["<unk>", "<s>", "</s>", "<tool call>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*head, *pieces]
    return {
        **MODEL,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-index) for index in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, 4, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefixed,
    }


def gemma4_metadata() -> dict[str, Value]:
    """Characters merged by rank, and lines that are tokens."""
    written = [text.replace(" ", "▁") for text in TEXT]
    merges = [("\n", "\n"), *learn_merges(written, 120)]
    pieces = ["\n", *sorted(set("".join(written)) - {"\n"}), *map("".join, merges)]
    head = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        **MODEL,
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [*head, "<tool call>", *pieces],
        "tokenizer.ggml.scores": [0.0] * (len(head) + 1 + len(pieces)),
        "tokenizer.ggml.token_type": [3, 3, 3, 2, *[6] * 256, 4, *[1] * len(pieces)],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }


def all_metadata() -> dict[str, dict[str, Value]]:
    """By name: each splitting rule, Gemma 4's, and sentencepiece both ways."""
    return {
        **{rule: byte_level_metadata(rule) for rule in SPLITTING_RULES},
        "gemma4": gemma4_metadata(),
        "sentencepiece": sentencepiece_metadata(prefixed=True),
        "sentencepiece without a space": sentencepiece_metadata(prefixed=False),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    (target / "texts.json").write_text(json.dumps(texts()))
    for name, metadata in all_metadata().items():
        write_gguf(target / f"{name}.gguf", metadata, {})
