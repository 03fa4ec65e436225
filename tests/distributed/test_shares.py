"""Protects: a model divided among ranks computes what it computes whole, and reads its part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.distributed.thread_ranks import of_each_rank
from tests.models.tiny_families import FAMILIES
from tests.models.wide_families import WIDE_FAMILIES
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ConfigError
from twostroke.distributed.rank_spec import rank_spec
from twostroke.distributed.ranks import Ranks
from twostroke.models.decoder import Decoder
from twostroke.models.shards import shards_of
from twostroke.models.support import parse_runnable, read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model

TOKENS = [3, 17, 5, 80, 41, 41, 9, 60, 22, 71, 14]
# Float32 sums of halves, rounded otherwise than sums of all; logits are around 1.
TOLERANCE = 2e-4
WHOLE = ("whole heads' norms", "recurrent layers")


def divides(raw: dict[str, Any], size: int) -> bool:
    try:
        rank_spec(parse_runnable(raw), size)
    except ConfigError:
        return False
    return True


def load(folder: Path, ranks: Ranks | None = None, dtype: str = "float32") -> Decoder:
    checkpoint = open_checkpoint(folder)
    spec = read_runnable(checkpoint)
    return load_model(checkpoint, spec, dtype, torch.device("cpu"), 128, group=ranks)


def logits_of_ranks(folder: Path, size: int, dtype: str = "float32") -> list[Tensor]:
    return of_each_rank(size, lambda ranks: naive_logits(load(folder, ranks, dtype), TOKENS))


@pytest.mark.parametrize("family", [name for name, raw in FAMILIES.items() if divides(raw, 2)])
def test_two_ranks_give_the_logits_of_one_process(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    expected = naive_logits(load(folder), TOKENS)
    first, second = logits_of_ranks(folder, 2)
    assert torch.equal(first, second)
    assert (first - expected).abs().max() < TOLERANCE
    assert torch.equal(first.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("family", [n for n, raw in WIDE_FAMILIES.items() if divides(raw, 2)])
def test_two_ranks_of_bfloat16_kernels_are_as_near_to_float32(family: str, tmp_path: Path) -> None:
    raw = WIDE_FAMILIES[family]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw).items()}
    folder = write_checkpoint(tmp_path, raw, tensors)
    exact = naive_logits(load(folder), TOKENS)
    own = (naive_logits(load(folder, dtype="bfloat16"), TOKENS) - exact).abs().median()
    first, second = logits_of_ranks(folder, 2, "bfloat16")
    assert torch.equal(first, second)
    assert (first - exact).abs().median() < 2 * own


@pytest.mark.parametrize("size", [4, 8])
def test_heads_of_keys_are_there_several_times_where_they_are_fewer(
    size: int, tmp_path: Path
) -> None:
    raw = tiny_config("llama", num_attention_heads=8, num_key_value_heads=2, head_dim=8)
    folder = write_checkpoint(tmp_path, raw)
    expected = naive_logits(load(folder), TOKENS)
    for logits in logits_of_ranks(folder, size):
        assert (logits - expected).abs().max() < TOLERANCE


def test_each_rank_takes_its_part_of_every_tensor_once(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["llama"])
    whole = load(folder).weight_bytes
    parts = of_each_rank(2, lambda ranks: load(folder, ranks).weight_bytes)
    assert sum(parts) == whole


def test_what_cannot_be_divided_is_refused_by_name() -> None:
    for raw, size, message in (
        (tiny_config("llama"), 3, "3 does not divide the model's 4 attention heads"),
        (tiny_config("llama", intermediate_size=57), 2, "57 elements between an MLP's products"),
        (FAMILIES["olmo2"], 2, "does not work with norms over all heads"),
        (FAMILIES["mamba2"], 2, "does not work with recurrent layers"),
    ):
        with pytest.raises(ConfigError, match=message):
            rank_spec(parse_runnable(raw), size)


def test_nothing_is_left_out_nor_taken_twice() -> None:
    """Of a fused tensor, each rank takes its part of every section."""
    from twostroke.models.parameters import Parameter

    whole = [Parameter("qkv.weight", (("w", (24, 8)),), sections=(16, 4, 4))]
    own = [Parameter("qkv.weight", (("w", (12, 8)),), sections=(8, 2, 2))]
    ranges = [shards_of(whole, own, rank, 2)["w"].ranges for rank in range(2)]
    assert ranges == [((0, 8), (16, 18), (20, 22)), ((8, 16), (18, 20), (22, 24))]
