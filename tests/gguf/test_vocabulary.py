"""Protects: texts become the tokens that llama.cpp makes of them, whatever splits their words."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from benchmarks.gguf.writer import Value
from tests.gguf.vocabularies import (
    all_metadata,
    byte_level_metadata,
    gemma4_metadata,
    sentencepiece_metadata,
    texts,
)
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.gguf.splitting_rules import SPLITTING_RULES
from twostroke.checkpoints.gguf.vocabulary import end_tokens, read_tokenizer
from twostroke.core.errors import ModelLoadError
from twostroke.text.tokenizer import Tokenizer

# What benchmarks/gguf/llama_cpp_tokens.py printed with llama-cpp-python 0.3.36.
LLAMA_CPP = {
    "chatglm-bpe": "b1cde5f8a1892250",
    "codeshell": "64a6d96c4aa72445",
    "command-r": "64a6d96c4aa72445",
    "dbrx": "b1cde5f8a1892250",
    "deepseek-llm": "9a60fda5fe06dae8",
    "deepseek-r1-qwen": "fcdf7a97b3ad8af4",
    "deepseek-v3": "db75ed7e18e41d5d",
    "exaone": "64a6d96c4aa72445",
    "exaone4": "09a33ecd0a6563c5",
    "falcon-h1": "5ce4425a410eebb8",
    "falcon3": "5ce4425a410eebb8",
    "gemma4": "c1a9db5879ab5231",
    "glm4": "b1cde5f8a1892250",
    "gpt-2": "09a33ecd0a6563c5",
    "gpt-4o": "a1e780f94107007e",
    "kimi-k2": "bcf1abf0ab53d14f",
    "lfm2": "5ce4425a410eebb8",
    "llama-bpe": "5ce4425a410eebb8",
    "llama-v3": "5ce4425a410eebb8",
    "llama3": "5ce4425a410eebb8",
    "llama4": "a1e780f94107007e",
    "megrez": "fcdf7a97b3ad8af4",
    "mpt": "09a33ecd0a6563c5",
    "olmo": "09a33ecd0a6563c5",
    "phi-2": "09a33ecd0a6563c5",
    "pixtral": "5ce4425a410eebb8",
    "qwen2": "fcdf7a97b3ad8af4",
    "qwen35": "fcdf7a97b3ad8af4",
    "refact": "64a6d96c4aa72445",
    "sentencepiece without a space": "dc3a09889fa19695",
    "sentencepiece": "d805f8eb6a945d7d",
    "smaug-bpe": "b1cde5f8a1892250",
    "smollm": "64a6d96c4aa72445",
    "stablelm2": "fcdf7a97b3ad8af4",
    "starcoder": "64a6d96c4aa72445",
    "tekken": "e55f52690821863a",
}
# Kimi's words end before a capital, which llama.cpp overlooks: without texts where it matters.
NEW_CAPITAL = re.compile(r"[^\W\d_A-Z][A-ZΩ]")
KEY = "tokenizer.ggml."


def read(metadata: dict[str, Value], **changes: Any) -> Tokenizer:
    changed = {f"{KEY}{name}": value for name, value in changes.items()}
    kept = {key: value for key, value in {**metadata, **changed}.items() if value is not None}
    return read_tokenizer(Metadata(kept, Path("x.gguf")))


def test_every_rule_has_a_reference() -> None:
    assert set(LLAMA_CPP) == set(all_metadata())


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_the_tokens_of_llama_cpp(name: str) -> None:
    tokenizer = read(all_metadata()[name])
    compared = texts()
    if name == "kimi-k2":
        compared = [text for text in compared if not NEW_CAPITAL.search(text)]
    ids = [tokenizer.encode(text) for text in compared]
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] == LLAMA_CPP[name]


@pytest.mark.parametrize("name", sorted({*LLAMA_CPP} - {"sentencepiece"}))
def test_texts_come_back(name: str) -> None:
    """Where a space is put first, one comes after each special token, too: as in llama.cpp."""
    tokenizer = read(all_metadata()[name])
    for text in texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_words_of_kimi() -> None:
    """Split as the pattern of its makers' ``tokenization_kimi.py`` does."""
    splitter = Split(Regex(SPLITTING_RULES["kimi-k2"].patterns[0]), behavior="isolated")
    text = "camelCase HTTPServer don't 你好世界ab 漢A12345 \n\n  x"
    words = ["camel", "Case", " HTTPServer", " don't", " ", "你好世界", "ab", " ", "漢", "A"]
    words += ["123", "45", " \n\n", " ", " x"]
    assert [word for word, _ in splitter.pre_tokenize_str(text)] == words


def test_cased_letters_of_deepseek() -> None:
    """Those of its tokenizer: of every script that it has some of, and of some that it has not."""
    splitter = Split(Regex(SPLITTING_RULES["deepseek-llm"].patterns[1]), behavior="removed")
    inside = (0x41, 0x7A, 0xB5, 0x2AF, 0x370, 0x531, 0x10A0, 0x13A0, 0x1CBA, 0xFF3A, 0x1E943)
    outside = (0xAA, 0x294, 0x561, 0x10D0, 0x2D00, 0xA790, 0xAB60, 0x10570, 0x1D400)
    assert not any(splitter.pre_tokenize_str(chr(letter)) for letter in inside)
    assert all(splitter.pre_tokenize_str(chr(letter)) for letter in outside)


def test_merges_of_gemma_4_with_spaces_and_newlines() -> None:
    tokenizer = read(gemma4_metadata())
    tokens = Metadata(gemma4_metadata(), Path("x.gguf")).texts(f"{KEY}tokens")
    ids = tokenizer.encode("\n\n", add_special_tokens=False)
    assert [tokens[index] for index in ids] == ["\n\n"]
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id


def test_a_composed_rule_composes() -> None:
    composed, plain = read(byte_level_metadata("qwen2")), read(byte_level_metadata("gpt-2"))
    assert composed.encode("e\u0301") == composed.encode("\u00e9")
    assert plain.encode("e\u0301") != plain.encode("\u00e9")


def test_special_tokens_and_templates() -> None:
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    metadata["tokenizer.chat_template.tool_use"] = "{{ tools }}"
    tokenizer = read(metadata)
    assert tokenizer.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id
    assert set(tokenizer.chat_templates) == {"default", "tool_use"}
    assert read(metadata, add_bos_token=False).encode("a")[0] != tokenizer.bos_token_id
    assert read(metadata, add_eos_token=True).encode("a")[-1] == tokenizer.eos_token_id


def test_a_turn_ends_with_any_of_its_tokens() -> None:
    metadata = byte_level_metadata("gpt-2")
    tokens = Metadata(metadata, Path("x.gguf")).texts(f"{KEY}tokens")
    changed = [*tokens, "<|im_end|>", "<|eom_id|>", "<|other|>"]
    kinds = [*[1] * len(tokens), 4, 3, 3]
    metadata |= {f"{KEY}tokens": changed, f"{KEY}token_type": kinds, f"{KEY}eot_token_id": 5}
    ends = end_tokens(Metadata(metadata, Path("x.gguf")))
    named = metadata[f"{KEY}eos_token_id"]
    assert ends == [named, 5, tokens.index("</s>"), len(tokens), len(tokens) + 1]
    assert len(tokens) in read(metadata).special_ids


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"pre": "own"}, "tokenizer.ggml.pre is 'own': how text is split"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "has 'a' twice"),
        ({"token_type": [1, 1]}, "token_type is not of"),
        ({"merges": ["a"]}, "merges cannot be read"),
        ({"merges": ["a nowhere"]}, "merges cannot be read"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000 of"),
        ({"add_bos_token": "yes"}, "add_bos_token must be true or false"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelLoadError) as failure:
        read(byte_level_metadata("gpt-2"), **changes)
    assert said in failure.value.message and failure.value.hint


def test_scores_of_another_vocabulary() -> None:
    with pytest.raises(ModelLoadError, match="scores is not of"):
        read(sentencepiece_metadata(prefixed=True), scores=[0.0])
