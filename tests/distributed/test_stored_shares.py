"""Protects: weights that stay as their file stores them are divided where their blocks allow it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gguf.make_gguf import read_metadata, read_tensors
from benchmarks.gguf.writer import write_gguf
from tests.checkpoints import tiny_config
from tests.distributed.test_shares import TOKENS
from tests.distributed.thread_ranks import of_each_rank
from tests.gguf.test_served import random_blocks, write_folder
from tests.quantised.packers import write_both
from tests.quantised.test_served import DECODED, KEPT
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.distributed.ranks import Ranks
from twostroke.kernels.library import load_library
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")


def load(
    path: Path,
    ranks: Ranks | None = None,
    quantization: str | None = None,
    dtype: str = "bfloat16",
) -> Decoder:
    checkpoint = open_checkpoint(path)
    spec, device = read_runnable(checkpoint), torch.device("cpu")
    return load_model(checkpoint, spec, dtype, device, 64, quantization, group=ranks)


def write(folder: Path, name: str) -> Path:
    """A Llama whose matrices have rows of two blocks of 256, and heads of another format."""
    raw = tiny_config("llama", hidden_size=512, intermediate_size=512, head_dim=128)
    write_folder(folder, raw, torch.bfloat16)
    tensors = dict(read_tensors(folder, "BF16"))
    for own, tensor in tensors.items():
        if len(tensor.shape) > 1:
            tensors[own] = random_blocks(name if own.startswith("blk.") else "Q8_0", tensor.shape)
    return write_gguf(folder / "model.gguf", read_metadata(folder), tensors)


def is_as_near(path: Path) -> None:
    """As one process is to the numbers of the same weights in float32.

    Rows that products read are rounded to int8 by scales of their own: of halves, of the whole.
    """
    exact = naive_logits(load(path, dtype="float32"), TOKENS)
    own = (naive_logits(load(path), TOKENS) - exact).abs().mean()
    first, second = of_each_rank(2, lambda ranks: naive_logits(load(path, ranks), TOKENS))
    assert torch.equal(first, second)
    assert (first - exact).abs().mean() < 1.5 * own


def bytes_of_layers(model: Decoder) -> int:
    return sum(linear.nbytes for linear in model._linears())


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_gguf_files(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, name)
    is_as_near(file)
    parts = of_each_rank(2, lambda ranks: bytes_of_layers(load(file, ranks)))
    assert sum(parts) == bytes_of_layers(load(file))  # nothing was decoded


@pytest.mark.parametrize("name", [*KEPT, *DECODED])
def test_quantised_folders(name: str, tmp_path: Path) -> None:
    case = KEPT[name][1] if name in KEPT else DECODED[name]
    folder, *_ = write_both(tmp_path, *case)
    is_as_near(folder)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_is_rounded_while_it_loads(quantization: str, tmp_path: Path) -> None:
    raw = tiny_config("llama", hidden_size=128, intermediate_size=256, head_dim=32)
    write_folder(tmp_path, raw, torch.bfloat16)
    exact = naive_logits(load(tmp_path), TOKENS)
    own = (naive_logits(load(tmp_path, None, quantization), TOKENS) - exact).abs().mean()
    first, _ = of_each_rank(
        2, lambda ranks: naive_logits(load(tmp_path, ranks, quantization), TOKENS)
    )
    assert (first - exact).abs().mean() < 1.5 * own
