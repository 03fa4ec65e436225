"""Protects: ten thousand candidates take seconds, and what contradicts itself is refused."""

from __future__ import annotations

from time import process_time

import pytest

from tests.planner.questions import planned, search_for
from twostroke.core.errors import ConfigError
from twostroke.planner.engines import engines
from twostroke.planner.make_plans import nearest_miss, varied
from twostroke.planner.plan import distinct

MOST_SECONDS = 20.0


def test_ten_thousand_candidates_take_seconds() -> None:
    every = {
        "gpus": "all",
        "tp": "1,2,4,8",
        "max_num_seqs": "16,32,64,128,256,512,1024",
        "max_num_batched_tokens": "512,1024,2048,4096,8192,16384",
    }
    search = search_for("llama-3.1-70b", {"users": 500}, limits=every)
    candidates = list(engines(search.builder))
    begin = process_time()
    found = search.run(candidates)
    assert len(candidates) > 10_000 and found.evaluated > 10_000
    assert process_time() - begin < MOST_SECONDS


def test_a_table_shows_several_devices() -> None:
    search = search_for()
    plans = distinct(search.run(engines(search.builder)).plans)
    shown = varied(plans, 5)
    assert len({plan.engine.gpu for plan in shown}) > 1
    assert shown == sorted(shown, key=search.order) and len(varied(plans, 1000)) == len(plans)


def test_where_no_plan_is_the_nearest_is_named() -> None:
    answer = planned(goals={"tpot": ("p95=0.1ms",)})
    assert answer.best is None and not answer.memory
    assert "TPOT P95" in nearest_miss(answer)


def test_speculation_is_searched_where_acceptance_is_given() -> None:
    answer = planned(traffic={"users": 4}, goals={"tpot": ("p95=4ms",)}, limits={"acceptance": 0.8})
    assert answer.best is not None and answer.best.plan.engine.drafts.tokens > 0


@pytest.mark.parametrize(
    ("traffic", "goals", "limits", "words"),
    [
        (None, None, {"gpus": "h1000"}, "unknown device"),
        (None, None, {"weight_dtype": "fp3"}, "weight format"),
        (None, None, {"kv_cache_dtype": "fp3"}, "cache format"),
        (None, None, {"tp": "3"}, "--tp 3"),
        (None, None, {"pp": "64"}, "--pp 64"),
        (None, None, {"dp": "none"}, "--dp"),
        (None, None, {"at_hand": "h100"}, "--at-hand"),
        (None, None, {"max_model_len": 100}, "--max-model-len"),
        (None, {"throughput": 1e8}, None, "--throughput"),
        ({"rate": 1.0, "input": 200_000}, None, None, "longest request"),
    ],
)
def test_contradictions_are_named(
    traffic: dict[str, object] | None,
    goals: dict[str, object] | None,
    limits: dict[str, object] | None,
    words: str,
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        planned(traffic=traffic, goals=goals, limits=limits)
    assert error.value.hint
