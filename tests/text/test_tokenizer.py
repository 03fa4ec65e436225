"""Loading a tokenizer folder, and the tokenizer itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from tests.text.tiny_tokenizers import KINDS, byte_level, id_of
from twostroke.core.errors import InvalidRequestError, ModelLoadError
from twostroke.text.tokenizer import LONG_TEXT, Tokenizer

BYTE_LEVEL = Tokenizer(byte_level())


def make_folder(folder: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_encode_and_decode_are_inverse(text: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text):
        with pytest.raises(InvalidRequestError, match="lone surrogate"):
            BYTE_LEVEL.encode(text)
    else:
        assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text), skip_special_tokens=False) == text


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 1), max_size=20))
def test_token_bytes_join_to_the_text(ids: list[int]) -> None:
    joined = b"".join(BYTE_LEVEL.token_bytes(i) for i in ids)
    assert joined.decode("utf-8", errors="replace") == BYTE_LEVEL.decode(
        ids, skip_special_tokens=False
    )


def test_long_texts_are_encoded_alike() -> None:
    text = "the quick <|end|> dög " * (LONG_TEXT // 20)
    assert len(text) > LONG_TEXT
    assert BYTE_LEVEL.encode(text) == BYTE_LEVEL.backend.encode(text).ids
    with pytest.raises(InvalidRequestError, match=f"lone surrogate at character {len(text)}"):
        BYTE_LEVEL.encode(text + "\ud800")


def test_most_characters_of_a_token() -> None:
    assert BYTE_LEVEL.max_chars_per_token == max(map(len, BYTE_LEVEL.backend.get_vocab()))
    assert Tokenizer(KINDS["byte_fallback"]()).max_chars_per_token
    assert Tokenizer(KINDS["wordpiece"]()).max_chars_per_token is None  # drops spaces


def test_token_bytes_by_kind() -> None:
    fallback = Tokenizer(KINDS["byte_fallback"]())
    ids = {t: id_of(fallback.backend, t) for t in ("<0xE4>", "▁the", "你", "<|end|>")}
    assert [fallback.token_bytes(i) for i in ids.values()] == [
        b"\xe4",
        b" the",
        "你".encode(),
        b"<|end|>",
    ]
    assert fallback.token_text(ids["▁the"]) == " the"
    assert fallback.token_text(ids["<0xE4>"]) == "\ufffd"
    metaspace = Tokenizer(KINDS["metaspace"]())
    assert metaspace.token_text(id_of(metaspace.backend, "▁do")) == " do"
    wordpiece = Tokenizer(KINDS["wordpiece"]())
    assert wordpiece.token_text(id_of(wordpiece.backend, "dog")) == "dog"
    assert BYTE_LEVEL.token_bytes(BYTE_LEVEL.vocab_size) == BYTE_LEVEL.token_bytes(-1) == b""


def test_special_tokens() -> None:
    assert BYTE_LEVEL.special_ids == {0, 1}
    ids = BYTE_LEVEL.encode("a<|end|>b")
    assert 0 in ids  # written in the text, and recognized
    assert BYTE_LEVEL.decode(ids) == "ab"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "a<|end|>b"


def test_truncation_and_padding_are_switched_off() -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=5)
    assert len(Tokenizer(backend).encode("x y z x y z x y z")) > 5
    assert len(Tokenizer(backend).encode("x")) == 1


def test_from_folder(tmp_path: Path) -> None:
    config = {
        "eos_token": {"content": "<|end|>"},
        "bos_token": "<|start|>",
        "chat_template": "{{ messages }}",
    }
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, config))
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1)
    assert tokenizer.special_tokens == {"eos_token": "<|end|>", "bos_token": "<|start|>"}
    assert tokenizer.chat_templates == {"default": "{{ messages }}"}
    assert tokenizer.vocab_size == BYTE_LEVEL.vocab_size
    assert tokenizer.encode("a")[0] != 1


def test_from_folder_with_tokenizer_json_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path))
    assert tokenizer.eos_token_id is None
    assert tokenizer.chat_templates == {}


def test_special_tokens_map_is_read_and_config_wins(tmp_path: Path) -> None:
    mapping = json.dumps({"eos_token": "<|start|>", "pad_token": "<|end|>"})
    folder = make_folder(tmp_path, {"eos_token": "<|end|>"}, special_tokens_map__json=mapping)
    assert Tokenizer.from_folder(folder).special_tokens == {
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
    }


def test_declared_special_tokens_become_special(tmp_path: Path) -> None:
    size = BYTE_LEVEL.vocab_size
    declared = {
        str(size): {"content": "<|tool|>", "special": True},
        "0": {"content": "<|end|>", "special": True},
    }
    tokenizer = Tokenizer.from_folder(
        make_folder(tmp_path, {"added_tokens_decoder": declared, "eos_token": "e"})
    )
    assert tokenizer.encode("a<|tool|>")[-1] == size
    assert {size, tokenizer.eos_token_id} <= tokenizer.special_ids
    assert tokenizer.vocab_size == size + 1


def test_added_tokens_in_conflict_are_refused(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path, {"added_tokens_decoder": {"9999": {"content": "<|tool|>", "special": True}}}
    )
    with pytest.raises(ModelLoadError, match="9999"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(("add_bos", "expected"), [(True, [1]), (False, []), (None, [0])])
def test_add_bos_overrides_the_post_processor(
    tmp_path: Path, add_bos: bool | None, expected: list[int]
) -> None:
    backend = byte_level()
    backend.post_processor = TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|start|>"} | ({} if add_bos is None else {"add_bos_token": add_bos})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    plain = tokenizer.encode("a b", add_special_tokens=False)
    assert tokenizer.encode("a b") == expected + plain


def test_chat_template_files_win(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    folder = make_folder(tmp_path, {"chat_template": named}, chat_template__jinja="new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag")
    assert Tokenizer.from_folder(folder).chat_templates == {
        "default": "new",
        "tool_use": "tools",
        "rag": "rag",
    }


def test_errors_carry_hints(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as missing:
        Tokenizer.from_folder(tmp_path / "nowhere")
    assert missing.value.hint
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelLoadError) as sentencepiece:
        Tokenizer.from_folder(tmp_path)
    assert "sentencepiece" in (sentencepiece.value.hint or "")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="cannot read"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelLoadError, match="cannot read"):
        Tokenizer.from_folder(make_folder(tmp_path, tokenizer_config__json="{"))
    with pytest.raises(ModelLoadError, match="no JSON object"):
        Tokenizer.from_folder(make_folder(tmp_path, tokenizer_config__json="[]"))


def test_text_must_be_a_string() -> None:
    with pytest.raises(InvalidRequestError, match="must be a string"):
        BYTE_LEVEL.encode(5)  # type: ignore[arg-type]


@given(texts=st.lists(st.text(max_size=30), max_size=5))
@settings(deadline=None)
def test_counts_are_those_of_the_texts_by_themselves(texts: list[str]) -> None:
    assert BYTE_LEVEL.count(texts) == [
        len(BYTE_LEVEL.encode(text, add_special_tokens=False)) for text in texts
    ]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
@given(
    text=st.text(alphabet=st.sampled_from("the dog 你é🙂\n"), max_size=60),
    number=st.integers(-1, 70),
)
@settings(deadline=None)
def test_a_prefix_is_what_its_tokens_stand_for(kind: str, text: str, number: int) -> None:
    tokenizer = Tokenizer(KINDS[kind]())
    total, prefix = tokenizer.count([text])[0], tokenizer.prefix(text, number)
    assert text.startswith(prefix)
    if number >= total:
        assert prefix == text
    elif kind == "byte_level":
        # A character that the last token begins is there as a whole: up to three bytes more.
        assert number <= tokenizer.count([prefix])[0] <= number + 3 or number < 1
        assert (prefix == "") == (number < 1)


def test_a_prefix_of_a_long_text() -> None:
    tokenizer, text = Tokenizer(byte_level()), "the dog " * 100_000
    assert tokenizer.max_chars_per_token is not None
    assert tokenizer.prefix(text, 10).rstrip() == ("the dog " * 5).rstrip()
