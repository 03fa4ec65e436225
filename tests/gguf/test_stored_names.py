"""Protects: the files that tests make have the tensors that llama.cpp's own converter writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from benchmarks.gguf.make_gguf import read_tensors
from tests.gguf.test_served import FURTHER, write_folder

# Of names and shapes in what ``convert_hf_to_gguf.py`` of llama-cpp-python 0.3.36 made of the
# folders, in float32; ``architectures`` and what it asks for beside our fields were added.
LLAMA_CPP = {
    "bamba": "9a97dc8ea1566a1f",
    "falcon-h1": "844610c8cf9cb5b8",
    "falcon-h1-no-norm": "d8d03626229565e5",
    "gemma4": "cacc022c4748b3ab",
    "gemma4-moe": "7550a18eaec0f7a6",
    "gemma4-shared": "6c7bfb39b5a11c30",
    "glm4-moe": "90e2e5ed5b993f55",
    "llama4": "1539e9bcb5917bc7",
    "mamba2": "055c6813df5d2e43",
    "nemotron-h": "2d2373bbacafab55",
    "nemotron-h-experts": "37b35662d34e11ca",
}


@pytest.mark.parametrize("name", FURTHER)
def test_names_and_shapes(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FURTHER[name])
    tensors = sorted([own, list(tensor.shape)] for own, tensor in read_tensors(folder, "F32"))
    digest = hashlib.sha256(json.dumps(tensors).encode()).hexdigest()[:16]
    assert digest == LLAMA_CPP[name]
