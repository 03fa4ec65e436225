"""Protects: drafts of a model are its likeliest tokens, in one compiled call as token by token."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.instruction_sets import INSTRUCTION_SETS, selected
from twostroke.core.config import EngineConfig
from twostroke.models.decoder import Decoder
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.spec_decode.greedy import GreedyDrafter, Unfinished

BLOCK = 4


def load(folder: Path, dtype: str = "bfloat16", **changes: object) -> TorchExecutor:
    raw = tiny_config("qwen3", head_dim=16, num_hidden_layers=3, **changes)
    tensors = random_tensors(raw, dtype=torch.bfloat16)
    options: dict[str, object] = {
        "model": str(write_checkpoint(folder / "tiny", raw, tensors)),
        "device": "cpu",
    }
    options |= {"dtype": dtype, "max_model_len": 128, "kv_cache_memory": 2**20}
    return load_torch_executor(EngineConfig.from_flat({**options, "block_size": BLOCK}))


def drafter(executor: TorchExecutor, num_layers: int, *, compiled: bool) -> GreedyDrafter:
    assert isinstance(executor.model, Decoder)
    model = executor.model.first_layers(num_layers)
    backend = attention_backend(model.spec, executor.kv, num_layers)
    made = GreedyDrafter(model, backend, BLOCK)
    assert (made._compiled is not None) == (executor.model.dtype is torch.bfloat16)
    if not compiled:
        made._compiled = None
    return made


def unfinished(random: Random, num_blocks: int) -> list[Unfinished]:
    """Requests that lack one token, or several, at places all over the cache."""
    free = random.sample(range(num_blocks), 96)
    requests = []
    for _ in range(random.randrange(1, 6)):
        start, count = random.randrange(30), random.choice([1, 1, 2, 9])
        most = random.randrange(1, 8)
        blocks = np.array([free.pop() for _ in range(16)], dtype=np.int32)
        tokens = [random.randrange(96) for _ in range(count)]
        requests.append(Unfinished(tokens, start, blocks, most))
    return requests


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_one_call_gives_the_drafts_of_single_passes(
    tmp_path: Path, tied: bool, instruction_set: str
) -> None:
    with selected(instruction_set) as there:
        if not there:
            pytest.skip(f"this processor lacks {instruction_set}")
        executor = load(tmp_path, tie_word_embeddings=tied)
        random = Random(3)
        for num_layers in (1, 3):
            for _ in range(10):
                requests = unfinished(random, executor.info.num_blocks)
                caches = (*executor.kv.keys, *executor.kv.values)
                for cache in caches:
                    cache.normal_(generator=torch.Generator().manual_seed(1))
                before = [cache.clone() for cache in caches]
                singly = drafter(executor, num_layers, compiled=False).draft(requests)
                written = [cache.clone() for cache in caches]
                for cache, content in zip(caches, before):
                    cache.copy_(content)
                assert drafter(executor, num_layers, compiled=True).draft(requests) == singly
                assert [len(drafts) for drafts in singly] == [r.max_drafts for r in requests]
                assert all(map(torch.equal, caches, written))


@torch.inference_mode()
def test_other_precisions_draft_pass_by_pass(tmp_path: Path) -> None:
    executor = load(tmp_path, dtype="float32")
    request = Unfinished([5, 6, 7], 0, np.arange(8, dtype=np.int32), 5)
    [drafts] = drafter(executor, 3, compiled=True).draft([request])
    assert len(drafts) == 5


@torch.inference_mode()
def test_drafts_of_the_whole_model_are_its_greedy_answer(tmp_path: Path) -> None:
    executor = load(tmp_path)
    prompt, blocks = [5, 6, 7, 8, 9], np.arange(20, dtype=np.int32)
    whole = drafter(executor, 3, compiled=True)
    [answer] = whole.draft([Unfinished(prompt, 0, blocks, 12)])
    tokens = list(prompt)
    for expected in answer:
        [[token]] = whole.draft([Unfinished(tokens, 0, blocks, 1)])
        assert token == expected
        tokens.append(token)
