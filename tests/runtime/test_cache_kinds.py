"""Protects: layers that keep different things give what the whole sequence would, in one cache."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from tests.runtime.mixed_models import (
    BLOCK,
    LatentBranch,
    ask,
    check_random_requests,
    engine_of,
    hybrid_spec,
    mixed_spec,
    random_model,
    run,
)
from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.recurrent_state import NO_LAYER_STATES
from twostroke.model_spec.layer_groups import group_layers
from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.base import PassInputs
from twostroke.models.decoder import Decoder
from twostroke.runtime.block_bytes import BlockBytes
from twostroke.runtime.torch_executor import TorchExecutor


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(mixed_spec())


@pytest.fixture(scope="module")
def hybrid() -> Decoder:
    """Full attention and recurrent layers, all in one group."""
    return random_model(hybrid_spec())


@pytest.mark.parametrize("num_slots, caching", [(32, True), (32, False), (7, True)])
@pytest.mark.parametrize("name, many_blocks, few_blocks", [("model", 250, 62), ("hybrid", 64, 12)])
def test_every_output_equals_the_reference_without_a_cache(
    name: str,
    many_blocks: int,
    few_blocks: int,
    num_slots: int,
    caching: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Chunks, company, shared prefixes, turns, preemptions, with slots to spare or not."""
    model: Decoder = request.getfixturevalue(name)
    num_blocks = many_blocks if num_slots > 7 else few_blocks
    engine = engine_of(
        model,
        num_blocks=num_blocks,
        num_slots=num_slots,
        caching=caching,
        scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4),
    )
    check_random_requests(engine, model, Random(num_slots + caching))
    if caching and num_slots > 7:
        assert engine.scheduler.kv.prefix_hits > 0
    if num_blocks == few_blocks:
        assert engine.scheduler.batch.num_preemptions > 0


def test_without_windows_each_layer_has_memory_of_its_own() -> None:
    """Layers of compiled attention among others, and one that shares a cache with either."""
    spec = mixed_spec(recurrent=False, window=None)
    model = random_model(spec)
    engine = engine_of(
        model, num_blocks=20, scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4)
    )
    check_random_requests(engine, model, Random(5))
    kv = executor_of(engine).kv
    assert all(tensor.is_contiguous() for tensor in (*kv.keys, *kv.values))
    assert kv.keys[4] is kv.keys[0] and kv.values[5] is kv.values[1] and kv.keys[3] is kv.values[3]


@pytest.mark.parametrize(("name", "window"), [("fp8", 6), ("int8", None)])
def test_formats_hold_for_every_kind(name: KVCacheDtype, window: int | None) -> None:
    model = random_model(mixed_spec(window=window))
    engine = engine_of(
        model,
        num_blocks=120,
        num_slots=32,
        kv_format=name,
        scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4),
    )
    layout = executor_of(engine).kv.layouts[0].tensors[0]
    check_random_requests(engine, model, Random(7), layout)


def test_a_block_has_room_for_the_largest_layer_and_none_for_one_that_shares() -> None:
    spec = mixed_spec()
    members, model = group_layers(spec), random_model(spec)
    assert members.layers == ((0,), (3,), (4,), (1,), (7,))
    assert members.windows == (None, None, None, 6, 6)
    elements = [2 * (16 + 16), 2 * (16 + 8), 20, 64, 64]
    assert spec.kv_bytes_per_token("float32") == 4 * sum(elements)
    assert members.bytes_per_slot(spec, "float32") == 4 * max(elements)
    engine = engine_of(model, num_blocks=50)
    tensors = executor_of(engine).kv.block_tensors()
    assert sum(tensor.nbytes for tensor in tensors) == 50 * engine.info.block_bytes


def test_scales_of_one_shape_are_never_read_as_numbers_of_another() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype int8 does not work with this model"):
        engine_of(random_model(mixed_spec()), kv_format="int8")


def test_a_failing_request_leaves_zeros_in_every_kind(model: Decoder) -> None:
    kv = executor_of(engine_of(model, num_blocks=8)).kv
    slots = torch.tensor([[4, 8, 12, 16, 20], [5, 9, 13, 17, 21]])  # [tokens, groups]
    assert kv.are_finite(slots)
    for cache in (*kv.keys, *kv.values):
        cache.fill_(torch.nan)
    assert not kv.are_finite(slots)
    kv.zero_slots(slots)
    assert kv.are_finite(slots)
    for layer, column in kv.tables.items():
        for cache in (kv.keys[layer], kv.values[layer]):
            assert not bool(cache[slots[:, column] // BLOCK, slots[:, column] % BLOCK].any())


def test_a_block_moves_with_all_that_lies_in_it(model: Decoder) -> None:
    """As bytes, which tiers keep, and as a copy, which samples write."""
    kv = executor_of(engine_of(model, num_blocks=8)).kv
    generator = torch.Generator().manual_seed(0)
    for layer, cache in enumerate(kv.keys):
        if cache.numel():
            cache[2] = torch.rand(cache.shape[1:], generator=generator)
            kv.values[layer][2, ..., 0] = layer
    memory = BlockBytes(kv.block_tensors())
    memory.write([5], memory.read([2]))
    kv.copy_blocks([(2, 6)])
    for layer in kv.tables:
        for cache in (kv.keys[layer], kv.values[layer]):
            assert torch.equal(cache[5], cache[2]) and torch.equal(cache[6], cache[2])


def test_latents_give_what_keys_and_values_made_of_them_would(model: Decoder) -> None:
    """The same layer with its up-projections where the model's authors write them."""
    (branch,) = (b for layer in model._layers for b in layer if isinstance(b, LatentBranch))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, model.spec.hidden_size, generator=generator)
    rotations = {w: table.rotation(torch.arange(9)) for w, table in model._rotary.items()}
    specs = [layer.attention for layer in model.spec.each_layer()]
    attention = ReferenceAttention(model.spec.sliding_windows, None, specs)
    step = PassInputs(rotations, attention, NO_LAYER_STATES)
    attended = branch(Hidden(x), step, None).sum()
    query, latents = branch.query_and_latents(x, step)  # [tokens, heads, 16], [tokens, 20]
    plain = torch.einsum("tl,hkl->thk", latents[:, :12], branch.keys)
    rotated = latents[:, None, 12:].expand(-1, 4, -1)
    values = torch.einsum("tl,hvl->thv", latents[:, :12], branch.values)
    scores = torch.einsum("qhk,thk->hqt", query, torch.cat((plain, rotated), -1)) / 16**0.5
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    mixed = torch.einsum("hqt,thv->qhv", weights, values).flatten(1)
    torch.testing.assert_close(attended, branch.linears[-1](mixed, residual=x))


def test_heads_of_two_widths_in_one_compiled_pass_give_what_layers_one_by_one_do() -> None:
    """Their products are of one shape: 4 + 2 + 2 heads of 16, 2 + 1 + 1 of 32."""
    spec = mixed_spec(recurrent=False, window=None)
    chosen = replace(spec, layers=tuple(without_norms(spec.layers[i]) for i in (0, 6)))
    model = random_model(chosen, torch.bfloat16)
    assert (model.compiled_pass is None) == (model.kernels is None)
    answers = []
    for compiled in (model.compiled_pass, None):
        model.compiled_pass = compiled
        engine = engine_of(model, num_blocks=40)
        for name, start in (("a", 1), ("b", 11), ("c", 21)):
            engine.submit(ask(name, range(start, start + 9), 12))
        answers.append(run(engine))
    assert answers[0] == answers[1]


def without_norms(layer: LayerSpec) -> LayerSpec:
    assert layer.attention is not None
    return replace(layer, attention=replace(layer.attention, qk_norm=False))


def executor_of(engine: LLMEngine) -> TorchExecutor:
    assert isinstance(engine.executor, TorchExecutor)
    return engine.executor
