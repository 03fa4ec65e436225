"""Every field of every file of a checkpoint, mistyped, huge or nested deep: one line and a hint."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import tiny_config, write_checkpoint
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InsufficientMemoryError, ModelLoadError, TwostrokeError
from twostroke.models.support import parse_runnable
from twostroke.runtime.weights import check_context_fits
from twostroke.startup import load_engine
from twostroke.text.chat_template import ChatTemplate

VALUES = {
    **{text: text for text in ("null", "true", "-1", "0", "1e308", "1e999", "NaN", "0.5", "[]")},
    **{text: text for text in ("{}", "[1]", '[null,"a",{}]', '{"content":1,"a":[1]}')},
    "2**30": str(2**30),
    "10**400": "1" + "0" * 400,
    "6000 digits": "9" * 6000,
    "a surrogate": '"\\ud800"',
    "a long text": '"' + "x" * 100_000 + '"',
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 5000 + "1" + "}" * 5000,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
CONFIG = {
    **tiny_config("llama", vocab_size=331),
    "rope_parameters": {**YARN, "original_max_position_embeddings": 64},
    **dict.fromkeys(("sliding_window", "layer_types", "head_dim", "quantization_config", "dtype")),
    **dict.fromkeys(("partial_rotary_factor", "final_logit_softcapping", "rope_theta")),
}
TOKENIZER: dict[str, Any] = {
    "bos_token": "<|start|>",
    "add_bos_token": True,
    "added_tokens_decoder": {"0": {"content": "<|end|>", "special": True}},
    "additional_special_tokens": ["<|start|>"],
    "chat_template": [{"name": "default", "template": "x"}],
}
GENERATION = {"eos_token_id": [2], "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.1}


def variants(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """JSON texts of ``value`` with one part of it replaced, each by each of ``VALUES``."""
    for name, text in VALUES.items():
        yield f"{path or 'all'} = {name}", text
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items if isinstance(value, (dict, list)) else ():
        inner = variants(item, f"{path}.{key}") if isinstance(item, (dict, list)) else None
        for label, text in inner or ((f"{path}.{key} = {n}", t) for n, t in VALUES.items()):
            if isinstance(value, dict):
                parts = [f"{json.dumps(k)}:{text if k == key else json.dumps(v)}" for k, v in items]
                yield label, "{" + ",".join(parts) + "}"
            else:
                parts = [text if i == key else json.dumps(v) for i, v in enumerate(value)]
                yield label, "[" + ",".join(parts) + "]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, CONFIG, shards=2)
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION))
    return tmp_path


def load(folder: Path, **options: Any) -> None:
    options = {"kv_cache_memory": 2**20, "max_num_seqs": 2, **options}
    engine = load_engine(EngineConfig.from_flat({"model": str(folder), **options}))
    assert engine.tokenizer is not None
    try:
        ChatTemplate.from_tokenizer(engine.tokenizer)
    finally:
        engine.close()


def check(folder: Path, label: str) -> None:
    try:
        load(folder)
    except TwostrokeError as error:
        assert error.hint, label
        assert len(str(error)) < 600 and "\n" not in str(error), label
    except BaseException as error:
        pytest.fail(f"{label}: {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("file", "contents"),
    [
        ("config.json", CONFIG),
        ("tokenizer_config.json", TOKENIZER),
        ("special_tokens_map.json", {"eos_token": {"content": "<|end|>"}}),
        ("generation_config.json", GENERATION),
        ("model.safetensors.index.json", {"weight_map": {"a": "model-00001-of-00002.safetensors"}}),
    ],
)
def test_a_file_of_the_checkpoint(file: str, contents: dict[str, Any], folder: Path) -> None:
    load(folder)
    for label, text in variants(contents):
        (folder / file).write_text(text)
        check(folder, f"{file}: {label}"[:200])
    for data in (b"", b"\xff\xfe{", b"\0" * 10):
        (folder / file).write_bytes(data)
        check(folder, f"{file}: {data!r}")


def test_the_header_of_the_weights(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    few = {name: header.pop(name), "__metadata__": header.pop("__metadata__")}
    rest = json.dumps(header)[1:]
    for label, text in variants(few):
        entries = (text[:-1] + "," + rest if text.startswith('{"m') else text).encode()
        path.write_bytes(struct.pack("<Q", len(entries)) + entries + data[8 + size :])
        check(folder, f"header: {label}"[:200])
    for broken in (b"", b"\xff" * 8, data[:100], struct.pack("<Q", 2**63) + data[8:]):
        path.write_bytes(broken)
        check(folder, f"header: {broken[:9]!r}")


@pytest.mark.parametrize("text", ["{}", "[]", VALUES["deep lists"], '{"model": {"type": "BPE"}}'])
def test_a_tokenizer_that_is_none(text: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    assert caught.value.hint and len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_names_files_of_its_own_folder(name: str, folder: Path) -> None:
    text = json.dumps({"weight_map": {"a": name}})
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelLoadError, match="weight_map"):
        load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**7), ("num_hidden_layers", 9999), ("hidden_size", 2**30)],
)
def test_sizes_are_held_against_the_weights(field: str, value: int, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    assert caught.value.hint


def test_a_context_that_no_memory_holds(folder: Path) -> None:
    """It tried to allocate 128 GB of rotary angles."""
    changed = {**CONFIG, "max_position_embeddings": 10**9, "rope_parameters": None}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(InsufficientMemoryError, match="one request of 1000000000 tokens") as caught:
        load(folder)
    assert caught.value.hint is not None and "--max-model-len" in caught.value.hint
    load(folder, max_model_len=256)


def test_a_context_that_fits_in_int4_is_let_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a request needs is counted in the format of the cache, not in that of the weights."""
    monkeypatch.setattr("twostroke.runtime.weights.free_memory", lambda device: 10**9)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes |= {"head_dim": 32, "max_position_embeddings": 10**6}
    spec = parse_runnable({**CONFIG, **sizes})
    per_token = int(spec.kv_bytes_per_token("float32"))
    length = 10**9 // per_token
    assert int(spec.kv_bytes_per_token("int4")) * 4 < per_token
    device = torch.device("cpu")
    with pytest.raises(InsufficientMemoryError, match=f"one request of {length} tokens"):
        check_context_fits(length, spec, "float32", 0, device)
    check_context_fits(length, spec, "int4", 0, device)
