"""Protects: attention to the tokens that an index finds is counted as in DeepSeek-V3.2's paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.kv_arithmetic import kv_layers
from twostroke.model_spec.public_models import find_model
from twostroke.models.support import check_runnable
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.timing.step_shape import StepShape

LAYERS, HEADS, LATENT, VALUE = 61, 128, 576, 512
INDEX_HEADS, INDEX_DIM, CHOSEN = 64, 128, 2048
SPARSE, DENSE = find_model("deepseek-v3.2"), find_model("deepseek-v3")


def test_the_index_adds_its_products_and_its_norm() -> None:
    products = 1536 * INDEX_HEADS * INDEX_DIM + 7168 * (INDEX_DIM + INDEX_HEADS)
    assert SPARSE.num_parameters - DENSE.num_parameters == LAYERS * (products + 2 * INDEX_DIM)


@pytest.mark.parametrize("format_", ["bf16", "fp8"])
def test_its_keys_take_132_bytes_in_every_layer_whatever_the_format(format_: str) -> None:
    more = SPARSE.kv_bytes_per_token(format_) - DENSE.kv_bytes_per_token(format_)
    assert more == LAYERS * (INDEX_DIM + 4)
    assert SPARSE.kv_bytes_per_token(format_, 8) == SPARSE.kv_bytes_per_token(format_)
    (layers,) = kv_layers(SPARSE, format_)
    assert "of an index in fp8" in layers.source


def test_a_query_scores_all_tokens_and_attends_to_the_chosen_ones() -> None:
    context = 50_000
    pairs = 2 * HEADS * (LATENT + VALUE) * CHOSEN + 2 * INDEX_HEADS * INDEX_DIM * context
    assert SPARSE.attention_flops(1, context - 1) == LAYERS * pairs


def test_long_contexts_are_cheap_to_decode_and_short_ones_are_not() -> None:
    sheet = load_hardware("h200")
    efficiencies = load_efficiencies(sheet.name, link=sheet.link_kind)
    sparse, dense = (
        RooflineCostModel(sheet, model, Parallel(), Dtypes(), efficiencies)
        for model in (SPARSE, DENSE)
    )

    def seconds(cost: RooflineCostModel, context: int) -> float:
        return cost.step(StepShape(32, 32 * context, (), 32)).seconds

    assert seconds(sparse, 1_000) > seconds(dense, 1_000)
    assert seconds(sparse, 100_000) < 0.8 * seconds(dense, 100_000)
    chunk = StepShape(0, 0, ((2048, 100_000),), 0)
    assert sparse.step(chunk).seconds < 0.5 * dense.step(chunk).seconds


def test_the_engine_refuses_it() -> None:
    with pytest.raises(ModelLoadError, match="index_topk"):
        check_runnable(replace(SPARSE, quantization=""))
