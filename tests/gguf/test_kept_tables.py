"""Protects: embeddings and heads that stay as a file stores them draft, share and count right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gguf.make_gguf import read_metadata, read_tensors
from benchmarks.gguf.writer import WrittenTensor, write_gguf
from tests.checkpoints import tiny_config
from tests.gguf.test_served import IDS, load, random_blocks, write_folder
from twostroke.checkpoints.gguf.dequantise import dequantise
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.kernels.library import load_library
from twostroke.layers.linear import PackedLinear
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime import weights
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import naive_logits
from twostroke.spec_decode.greedy import GreedyDrafter, Unfinished

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the compiled kernels")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


def write(
    folder: Path, tables: dict[str, str], *, tied: bool, layers: str = ""
) -> tuple[Path, dict[str, WrittenTensor]]:
    """A file in bfloat16 but for its tables, and its layers' matrices if ``layers`` says so."""
    raw = tiny_config(
        "llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=tied, head_dim=64
    )
    write_folder(folder, raw, torch.bfloat16)
    tensors = dict(read_tensors(folder, "BF16"))
    for own, tensor in tensors.items():
        name = tables.get(own) or (layers if own.startswith("blk.") else "")
        if name and len(tensor.shape) > 1:
            tensors[own] = random_blocks(name, tensor.shape)
    return write_gguf(folder / "model.gguf", read_metadata(folder), tensors), tensors


@pytest.mark.parametrize(
    ("tables", "tied", "compiled"),
    [
        ({HEAD: "Q6_K"}, False, True),
        ({HEAD: "Q4_0"}, False, True),
        ({EMBEDDING: "Q8_0"}, True, False),
        ({EMBEDDING: "Q4_K", HEAD: "Q6_K"}, False, False),
    ],
)
@torch.inference_mode()
def test_drafts_are_those_of_single_passes(
    tables: dict[str, str], tied: bool, compiled: bool, tmp_path: Path
) -> None:
    """In one compiled call where rows are looked up in bfloat16, else pass by pass."""
    file, _ = write(tmp_path, tables, tied=tied)
    options = {"model": str(file), "device": "cpu", "max_model_len": 64, "block_size": 4}
    executor = load_torch_executor(EngineConfig.from_flat({**options, "kv_cache_memory": 2**20}))
    assert isinstance(executor.model, Decoder)
    backend = attention_backend(executor.model.spec, executor.kv, 2)
    drafter = GreedyDrafter(executor.model, backend, 4)
    assert (drafter._compiled is not None) == compiled
    singly = GreedyDrafter(executor.model, backend, 4)
    singly._compiled = None
    requests = [Unfinished(IDS, 0, np.arange(12, dtype=np.int32), 8)]
    drafts = drafter.draft(requests)
    assert drafts == singly.draft(requests) and len(drafts[0]) == 8
    tokens = list(IDS)
    for token in drafts[0]:
        assert token == int(naive_logits(executor.model, tokens)[-1].argmax())
        tokens.append(token)


def test_a_tied_table_in_four_bits_is_one_table(tmp_path: Path) -> None:
    file, tensors = write(tmp_path, {EMBEDDING: "Q4_0"}, tied=True)
    model = load(file)
    assert isinstance(model._head, PackedLinear) and model._embedding is model._head
    values = dequantise("Q4_0", np.frombuffer(tensors[EMBEDDING].data, np.uint8))
    expected = torch.from_numpy(values).view(tensors[EMBEDDING].shape).bfloat16()
    assert torch.equal(model._head.weight_rows(torch.arange(len(expected))), expected)
    layers = sum(linear.nbytes for linear in model._linears())
    assert model.weight_bytes == model._head.nbytes + layers


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_memory_is_asked_for_as_it_is_taken(
    name: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a file is loaded, to within a hundredth of what its matrices then take."""
    tables = {EMBEDDING: name, HEAD: name}
    file, _ = write(tmp_path, tables, tied=tied, layers=name)
    asked: list[int] = []
    monkeypatch.setattr(weights, "check_memory", lambda needed, _: asked.append(needed))
    checkpoint = open_checkpoint(file)
    spec, device = read_runnable(checkpoint), torch.device("cpu")
    model = weights.load_model(checkpoint, spec, "bfloat16", device, 64)
    assert asked == [pytest.approx(model.weight_bytes, rel=0.01)]
