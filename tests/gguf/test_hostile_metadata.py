"""Protects: any value of any key of a GGUF file gives a model, or one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gguf.make_gguf import read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, write_gguf
from tests.checkpoints import tiny_config
from tests.gguf.test_delta_models import stored_parts as delta_parts
from tests.gguf.test_families import with_long_factors
from tests.gguf.test_latent_models import stored_parts as latent_parts
from tests.gguf.test_mamba_models import stored_parts as mamba_parts
from tests.gguf.test_served import OWN, write_folder
from tests.models.tiny_families import EXPERTS, FAMILIES
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import TwostrokeError
from twostroke.model_spec.generation_config import read_sampling_defaults
from twostroke.models.support import read_runnable
from twostroke.runtime.weights import load_model

VALUES: tuple[Value, ...] = (
    *(0, -1, 2**32 - 1, 1e38, float("nan"), True),
    *("x" * 100_000, [1, 2], ["a\nb"]),
)
SAMPLING: dict[str, Value] = {
    f"general.sampling.{name}": value
    for name, value in {"temp": 0.5, "top_k": 3, "top_p": 0.9, "penalty_repeat": 1.1}.items()
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, dict[str, Any]] = {
    "llama": tiny_config("llama", rope_scaling=YARN),
    "qwen3-moe": tiny_config("qwen3_moe", **EXPERTS, norm_topk_prob=True, head_dim=16),
    "gemma3": {**FAMILIES["gemma3"], "rope_theta": 1e6},
    **{name: OWN[name] for name in ("lfm2", "falcon-h1", "mamba2", "nemotron-h-experts")},
    **{name: OWN[name] for name in ("gemma4-shared", "gemma4-moe", "llama4")},
}
Parts = tuple[dict[str, Value], dict[str, WrittenTensor]]
# Whose files are not their folders' tensors by other names.
WRITERS: dict[str, Callable[[Path], Parts]] = {
    "deepseek": lambda folder: latent_parts(folder, "v3", apart=True),
    "qwen3.5": lambda folder: delta_parts(folder, "qwen35"),
    "qwen3-next": lambda folder: delta_parts(folder, "qwen3next"),
    "granite-4": lambda folder: mamba_parts(folder, "experts"),
    "phi3": with_long_factors,
}


def parts_of(name: str, folder: Path) -> Parts:
    """Metadata and tensors of a folder, which is written first."""
    if name in WRITERS:
        return WRITERS[name](folder)
    write_folder(folder, MODELS[name])
    return {**read_metadata(folder), **SAMPLING}, dict(read_tensors(folder, "F32"))


def read_all(path: Path) -> None:
    """Everything that starting a server reads."""
    checkpoint = open_checkpoint(path)
    checkpoint.tokenizer()
    spec = read_runnable(checkpoint)
    read_sampling_defaults(checkpoint.generation, checkpoint.path)
    load_model(checkpoint, spec, "auto", torch.device("cpu"), 64)


def check(path: Path, label: str) -> None:
    try:
        read_all(path)
    except TwostrokeError as error:
        assert error.hint, label
        assert len(str(error)) < 700 and "\n" not in str(error), label
    except BaseException as error:
        pytest.fail(f"{label}: {type(error).__name__}: {error}")


def _of_the_architecture(metadata: dict[str, Value]) -> list[str]:
    return [key for key in metadata if key.partition(".")[0] not in ("general", "tokenizer")]


@pytest.mark.parametrize("name", [*MODELS, *WRITERS])
def test_each_value_of_each_key(name: str, tmp_path: Path) -> None:
    metadata, tensors = parts_of(name, tmp_path / "folder")
    path = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    read_all(path)
    for key in metadata if name == "llama" else _of_the_architecture(metadata):
        for value in VALUES:
            write_gguf(path, {**metadata, key: value}, tensors)
            check(path, f"{key} = {str(value)[:40]}")
        kept = {other: value for other, value in metadata.items() if other != key}
        write_gguf(path, kept, tensors)
        check(path, f"without {key}")


@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek", "qwen3-next", "granite-4", "gemma4-moe"])
def test_each_tensor_of_another_shape_or_format(name: str, tmp_path: Path) -> None:
    metadata, tensors = parts_of(name, tmp_path / "folder")
    path = tmp_path / "model.gguf"
    for own, tensor in tensors.items():
        count = len(tensor.data) // 4
        others = {
            "flat": tensor._replace(shape=(count,)),
            "turned": tensor._replace(shape=tensor.shape[::-1]),
            "deep": tensor._replace(shape=(1, *tensor.shape)[:4]),
            "one": WrittenTensor("F32", (1,), bytes(4)),
            "integers": tensor._replace(format="I32"),
            "halves": tensor._replace(format="F16", data=tensor.data[: 2 * count]),
        }
        for label, other in others.items():
            write_gguf(path, metadata, {**tensors, own: other})
            check(path, f"{own} {label}")
        write_gguf(path, metadata, {each: kept for each, kept in tensors.items() if each != own})
        check(path, f"without {own}")
