"""Protects: a slot that returns holds zeros."""

from __future__ import annotations

import torch

from twostroke.layers.kv_layout import make_layout
from twostroke.runtime.cache_layouts import CacheLayout
from twostroke.runtime.kv_tensors import KVTensors

CPU = torch.device("cpu")


def test_tensors_start_at_zero_and_slots_return_to_it() -> None:
    pair = (make_layout("auto", torch.bfloat16, 4, 2, 8),) * 2
    kv = KVTensors([CacheLayout(pair, 0), CacheLayout(pair, 1)], 3, CPU)
    assert len(kv.keys) == len(kv.values) == 2
    assert kv.keys[0].shape == (3, 4, 2, 8) and kv.keys[0].dtype == torch.bfloat16
    assert not bool(kv.values[1].any())
    for cache in (*kv.keys, *kv.values):
        cache.fill_(torch.nan)
    kv.zero_slots(torch.tensor([0, 5]))
    for cache in (*kv.keys, *kv.values):
        finite = torch.isfinite(cache).all(-1).all(-1).view(-1)
        assert finite.nonzero().view(-1).tolist() == [0, 5]
