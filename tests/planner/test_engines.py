"""Protects: models are split in the ways that devices and layers allow, and no others."""

from __future__ import annotations

from typing import Any

from tests.planner.questions import engine, search_for
from twostroke.planner.engines import devices_and_formats, ways_to_split
from twostroke.planner.search import Search

EXPERTS = "qwen3-30b-a3b"


def splits(search: Search, gpu: str = "h100-sxm") -> set[tuple[int, int, int, bool]]:
    ways = ways_to_split(search.builder, search.builder.sheet(gpu))
    return {(way.tensor, way.data, way.pipeline, way.expert) for way in ways}


def search(model: str = "llama-3.1-8b", **limits: Any) -> Search:
    return search_for(model, limits={"tp": "1,2,4", "pp": "1,2", "dp": "1,2,8", **limits})


def test_models_without_experts_are_split_by_tensors_and_layers() -> None:
    assert splits(search()) == {(tp, 1, pp, False) for tp in (1, 2, 4) for pp in (1, 2)}
    assert splits(search(pp="1,1000")) == {(tp, 1, 1, False) for tp in (1, 2, 4)}


def test_experts_are_whole_or_parts_and_shared_by_groups() -> None:
    ways = splits(search(EXPERTS))
    assert {(4, 1, 1, False), (4, 1, 1, True), (1, 8, 1, True), (4, 2, 1, True)} <= ways
    # More than are joined; groups in a pipeline; whole experts on one device.
    assert not ways & {(4, 8, 1, True), (1, 2, 2, True), (1, 1, 1, True), (1, 8, 1, False)}
    assert all(not expert for *_, expert in splits(search(EXPERTS, ep="no")))
    assert (4, 1, 1, False) not in splits(search(EXPERTS, ep="yes"))


def test_devices_without_a_link_are_not_split_over() -> None:
    assert splits(search(), "cpu") == {(1, 1, 1, False), (1, 1, 2, False)}


def test_a_stage_has_its_part_of_the_weights_and_a_group_its_own_requests() -> None:
    builder = search(EXPERTS).builder
    one, stages = (builder.deployment(engine(tp=2, pp=pp)) for pp in (1, 2))
    assert stages.weight_bytes * 2 <= one.weight_bytes + 2
    groups = builder.deployment(engine(tp=1, dp=4, ep=True, seqs=64))
    assert groups.scheduler.max_num_seqs == 4 * 64
    assert engine(dp=4, ep=True).num_devices == 4
    assert engine(tp=2, pp=2).describe() == "4 x h100-sxm (TP2 PP2), bf16 weights, bf16 KV"
    assert len(list(devices_and_formats(builder))) == len(set(devices_and_formats(builder)))
