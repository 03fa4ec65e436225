"""Which formats of the KV cache a GPU's kernels take, and what whole models answer with int8."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
import torch

from tests.runtime.mixed_models import (
    ROPE,
    check_random_requests,
    engine_of,
    hybrid_spec,
    mixed_spec,
    random_model,
)
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.runtime import backends
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.cache_layouts import cache_layouts
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.torch_executor import TorchExecutor

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators


@pytest.fixture(autouse=True)
def without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's own come first."""
    monkeypatch.setattr(backends, "load_library", lambda: None)


@pytest.mark.parametrize(
    ("name", "block_size", "is_taken"),
    [
        ("auto", 16, True),
        ("fp8", 16, True),
        ("int8", 16, True),
        ("int8", 12, True),
        ("int8", 6, False),
        ("int4", 16, False),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_which_attention_reads_a_format(
    name: KVCacheDtype,
    block_size: int,
    is_taken: bool,
    chunked: bool,
    operators: GpuOperators,
    device: torch.device,
) -> None:
    from twostroke.layers.gpu.paged_attention import PagedBackend

    attention = AttentionSpec(4, 2, 32, 32, 40 if chunked else None, rope=ROPE, chunked=chunked)
    layer = replace(hybrid_spec().layers[1], attention=attention)
    spec = replace(hybrid_spec(), layers=(layer, layer))
    kv = KVTensors(cache_layouts(spec, name, torch.float32, block_size), 8, device)
    kind = PagedBackend if is_taken and not chunked else SdpaBackend
    assert type(attention_backend(spec, kv)) is kind


def test_int8_holds_for_every_kind(operators: GpuOperators, device: torch.device) -> None:
    """Windows, latents, shared caches, and layers of several shapes that share memory."""
    model = random_model(mixed_spec(recurrent=False), device=device)
    engine = engine_of(
        model,
        num_blocks=120,
        kv_format="int8",
        scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4),
    )
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    kv = executor.kv
    assert not kv.keys[0].is_contiguous()
    assert attention_backend(model.spec, kv).fixed_tables(1, 4), "not all are the kernels'"
    check_random_requests(engine, model, Random(7), kv.layouts[0].tensors[0], count=2)
