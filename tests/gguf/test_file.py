"""Protects: a GGUF file is read as it is meant, and no broken one costs memory or a traceback."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gguf.writer import Value, WrittenTensor, encode, gguf_bytes
from tests.mutated_files import count_readable, num_examples, read_or_refuse
from twostroke.checkpoints.gguf.file import read_gguf
from twostroke.checkpoints.gguf.split_files import join_tensors, read_gguf_parts
from twostroke.core.errors import ModelLoadError

EXAMPLES = num_examples(3000)
METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 2,
    "llama.rope.freq_base": 1e-5,
    "negative": -3,
    "flag": True,
    "tokens": ["a", "▁b", ""],
    "scores": [0.5, -1.0],
    "kinds": [1, 3],
    "layers": [True, False],
}
ROWS = np.arange(128, dtype=np.float32).reshape(2, 64) - 40


def tensors() -> dict[str, WrittenTensor]:
    return {name: encode(ROWS, name) for name in ("F32", "F16", "BF16", "Q8_0")}


def whole() -> bytes:
    return gguf_bytes(METADATA, tensors())


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelLoadError) as failure:
        read_gguf(path)
    assert failure.value.hint and "\n" not in str(failure.value)
    return failure.value.message


@pytest.mark.parametrize("version", [2, 3])
def test_a_whole_file(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(METADATA, tensors(), version))
    file = read_gguf(path)
    assert file.metadata == METADATA
    assert list(file.tensors) == ["F32", "F16", "BF16", "Q8_0"]
    data = path.read_bytes()
    for name, tensor in file.tensors.items():
        assert (tensor.format, tensor.shape, tensor.path) == (name, (2, 64), path)
        assert data[tensor.offset : tensor.offset + tensor.nbytes] == tensors()[name].data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"magic": b"GGML"}, "does not begin with GGUF"),
        ({"version": struct.pack("<I", 1)}, "version is 1; 2 and 3"),
        ({"version": struct.pack(">I", 3)}, "big-endian"),
        ({"tensors": struct.pack("<Q", 2**62)}, "exceed the file"),
        ({"values": struct.pack("<Q", 2**62)}, "."),
    ],
)
def test_a_wrong_head(tmp_path: Path, change: dict[str, bytes], said: str) -> None:
    parts = {"magic": 0, "version": 4, "tensors": 8, "values": 16}
    data = bytearray(whole())
    for part, value in change.items():
        data[parts[part] : parts[part] + len(value)] = value
    assert said in refused(tmp_path / "a.gguf", bytes(data))


def one(shape: tuple[int, ...], name: str = "Q8_0", data: bytes = bytes(34)) -> bytes:
    return gguf_bytes({}, {"x": WrittenTensor(name, shape, data)})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (whole()[:100], "ends after 100 bytes|exceed the file's 100 bytes"),
        (whole()[:-64], "not within the file"),
        (one((33,)), "blocks of 32"),
        (one((0, 32)), "dimensions"),
        (one((1, 1, 1, 1, 32)), "5 dimensions"),
        (one((2**40, 2**20)), "not within the file"),
        (gguf_bytes({"general.alignment": 12}, {}), "general.alignment must be a power of two"),
        (one((32,)).replace(struct.pack("<I", 8), struct.pack("<I", 99)), "the type 99"),
    ],
)
def test_a_wrong_tensor(tmp_path: Path, data: bytes, said: str) -> None:
    message = refused(tmp_path / "a.gguf", data)
    assert any(each in message for each in said.split("|"))


def test_what_is_stated_twice(tmp_path: Path) -> None:
    both = gguf_bytes({"aa": 1, "ab": 2}, {})
    assert "states 'ab' twice" in refused(tmp_path / "a.gguf", both.replace(b"aa", b"ab"))
    two = {name: encode(ROWS, "F32") for name in ("ta", "tb")}
    both = gguf_bytes({}, two).replace(b"ta", b"tb")
    assert "has 'tb' twice" in refused(tmp_path / "a.gguf", both)


def test_tensors_that_overlap(tmp_path: Path) -> None:
    two = {name: encode(ROWS, "F32") for name in ("ta", "tb")}
    data = bytearray(gguf_bytes({}, two))
    at = data.index(b"tb") + 2 + 4 + 2 * 8 + 4  # name, dimensions, type
    assert struct.unpack_from("<Q", data, at)[0] == len(two["ta"].data)
    struct.pack_into("<Q", data, at, 32)
    assert "overlap" in refused(tmp_path / "a.gguf", bytes(data))


def split(folder: Path, **changes: dict[str, Any]) -> Path:
    """A model in three parts; ``changes``: of the metadata of ``part0`` and so on."""
    for index, (name, tensor) in enumerate(list(tensors().items())[:3]):
        own: dict[str, Value] = {"split.no": index, "split.count": 3, "split.tensors.count": 3}
        own |= (METADATA if index == 0 else {}) | changes.get(f"part{index}", {})
        path = folder / f"model-{index + 1:05d}-of-00003.gguf"
        path.write_bytes(gguf_bytes(own, {name: tensor}))
    return folder / "model-00002-of-00003.gguf"


def test_a_split_model_by_any_of_its_files(tmp_path: Path) -> None:
    parts = read_gguf_parts(split(tmp_path))
    assert parts[0].metadata["llama.block_count"] == 2
    assert list(join_tensors(parts)) == ["F32", "F16", "BF16"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"part2": {"split.no": 0}}, "says that it is part 0 of 3"),
        ({"part0": {"split.count": 4}}, "says that it is part 0 of 4"),
        ({"part0": {"split.tensors.count": 5}}, "speaks of 5 tensors"),
        ({"part1": {"split.count": 7}}, "one of 7 parts"),
    ],
)
def test_parts_that_do_not_belong_together(
    tmp_path: Path, changes: dict[str, dict[str, Any]], said: str
) -> None:
    path = split(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=said):
        join_tensors(read_gguf_parts(path))


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    path = split(tmp_path)
    (tmp_path / "model-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks 1 of 3 parts: model-00003-of-00003\.gguf"):
        read_gguf_parts(path)


def test_mutated_files_cost_a_line_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    num_read = count_readable(path, whole(), lambda: read_gguf(path), EXAMPLES)
    assert EXAMPLES // 30 < num_read < EXAMPLES  # both happen


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_bytes_after_the_magic(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + data)
    read_or_refuse(lambda: read_gguf(path))
