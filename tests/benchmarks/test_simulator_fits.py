"""Protects: fast forms of the cost model equal the real ones; coefficients hold on data."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from benchmarks.simulator import data, kernels, make_tables
from benchmarks.simulator.products.experts_batch import ExpertsBatch
from benchmarks.simulator.products.rows import ExpertsRow
from benchmarks.simulator.search import search
from benchmarks.simulator.servers.judge_servers import SHARES, Judged, coverage
from benchmarks.simulator.servers.measured import ServingRow, waiting
from benchmarks.simulator.servers.prefill_starts import halves
from benchmarks.simulator.servers.simulated import Simulated, command, simulate_rows
from benchmarks.simulator.servers.stacks import Closed, Stack
from benchmarks.simulator.vector import GemmBatch
from twostroke.simulator.cost.efficiencies import HostEfficiency, load_efficiencies
from twostroke.simulator.cost.experts_cost import GroupedProducts
from twostroke.simulator.cost.hardware_sheet import load_hardware

H100 = load_hardware("h100")
needs_data = pytest.mark.skipif(not data.present(), reason=f"no measurements at {data.DATA}")


def test_a_sample_has_rows_of_every_kind_and_no_others() -> None:
    rows = [(kind, number) for kind in "ab" for number in range(30)] + [("c", 0)]

    def kind(row: tuple[str, int]) -> str:
        return row[0]

    chosen = data.every_nth(rows, 3, kind)
    counts = {name: sum(row[0] == name for row in chosen) for name in "abc"}
    assert counts == {"a": 10, "b": 10, "c": 1}
    assert chosen == sorted(chosen) == data.every_nth(rows, 3, kind)
    # No pattern of the rows survives in it.
    assert len({number % 3 for name, number in chosen if name == "a"}) == 3
    assert data.every_nth(rows, 1, kind) == rows


def test_the_fast_form_of_products_is_the_real_one() -> None:
    rows = [
        data.GemmRow(format_, m, n, k, 1.0)
        for format_ in ("bf16", "fp8")
        for m in (1, 17, 300, 8192)
        for n, k in ((512, 8192), (28672, 4096))
    ]
    fitted = load_efficiencies("h100-sxm").gemm.values()
    assert {each.tile_by_rows for each in fitted} == {True, False}  # both kinds of library
    for efficiency in fitted:
        fast = GemmBatch([(row, H100) for row in rows]).seconds(asdict(efficiency))
        real = [kernels.gemm_seconds(row, H100, efficiency) for row in rows]
        assert fast == pytest.approx(real)


def test_the_fast_form_of_experts_is_the_real_one() -> None:
    rows = [
        ExpertsRow("bf16", tokens, 4096, 1536, 8, 128, 2, 4, skew, "", 1.0)
        for tokens in (1, 7, 64, 3000)
        for skew in (0.0, 1.01)
    ]
    batch = ExpertsBatch([(row, H100) for row in rows])
    for efficiency in load_efficiencies("h100-sxm").experts.values():
        grouped = GroupedProducts(
            [(1536, 4096), (4096, 768)],
            efficiency=efficiency,
            flops=H100.dense_flops["bf16"],
            bandwidth=H100.memory_bandwidth,
            units=H100.compute_units,
            weight_bytes=2.0,
        )
        real = [
            grouped.time(float(pairs), float(distinct), row.tokens * 8).seconds
            for row, pairs, distinct in zip(rows, batch.pairs, batch.distinct)
        ]
        assert batch.seconds(asdict(efficiency)) == pytest.approx(real)


def test_unequal_loads_reach_fewer_experts_and_fill_the_busiest_device() -> None:
    rows = [
        ExpertsRow("bf16", 256, 4096, 1536, 8, 128, 1, 4, skew, "", 1.0) for skew in (0.0, 1.01)
    ]
    batch = ExpertsBatch([(row, H100) for row in rows])
    assert batch.pairs[0] == 512 and batch.distinct[0] == 32
    assert 512 < batch.pairs[1] < 2048 and batch.distinct[1] <= 32


def test_the_search_finds_what_made_the_data_and_repeats_itself() -> None:
    def loss(values: dict[str, float]) -> float:
        return abs(values["a"] - 3.0) + abs(values["b"] - 0.5)

    space = {"a": (1.0, 0.1, 10.0, 0.3), "b": (0.0, -1.0, 1.0, -0.2)}
    found = search(loss, space, 1500)
    assert found["a"] == pytest.approx(3.0, abs=0.05) and found["b"] == pytest.approx(0.5, abs=0.05)
    assert found == search(loss, space, 1500)


def test_shapes_of_a_model() -> None:
    shapes = kernels.model_shapes("Llama-3.1-8B")
    assert {
        (6144, 4096),
        (4096, 4096),
        (28672, 4096),
        (4096, 14336),
        (4096, 7168),
        (768, 4096),
    } <= shapes


def row(**more: object) -> ServingRow:
    values: dict[str, object] = {
        "backend": "vllm",
        "model": "llama-3.1-8b",
        "weights": "bf16",
        "ranks": 1,
        "input": 1024,
        "output": 128,
        "concurrency": 8,
        "ttft": 0.1,
        "tpot": 0.01,
    }
    return ServingRow(**{**values, **more})  # type: ignore[arg-type]


def test_a_row_waits_if_its_output_length_delays_its_first_token() -> None:
    rows = [
        row(),
        row(output=512, ttft=0.12),
        row(output=1024, ttft=0.2),
        row(concurrency=16, ttft=0.5),
    ]
    assert waiting(rows) == [False, False, True, False]


def test_a_request_takes_longer_beside_more_clients_and_less_on_more_devices() -> None:
    closed = Closed(H100, {"vllm": load_efficiencies("h100-sxm", stack="vllm")})
    stack = Stack(HostEfficiency(step=0.001, request=1e-5, token=0.0))
    alone, many, shared = (
        closed.seconds(row(**more), stack)
        for more in ({"concurrency": 1}, {"concurrency": 64}, {"concurrency": 64, "ranks": 4})
    )
    assert 128 * 0.005 < alone < shared < many < 128 * 0.1


def test_half_of_the_configurations_is_kept_out_whatever_their_outputs() -> None:
    """First tokens of one configuration are due to the same work, so none is on both sides."""
    rows = [
        row(concurrency=clients, output=output) for clients in (1, 2, 4) for output in (64, 128)
    ]
    fitted, kept = halves(rows)
    assert {each.concurrency for each in fitted} == {1, 4}
    assert {each.concurrency for each in kept} == {2} and len(kept) == 2


def test_a_host_overlaps_the_device_in_the_versions_that_do_so() -> None:
    """vLLM does today; AI Configurator's runs of it are older."""
    stack = Stack(HostEfficiency(step=0.1, request=0.0, token=0.0, overlap=True))
    assert not stack.as_measured(row()).host.overlap
    assert stack.as_measured(row(model="llama-3.1-70b")).host.overlap
    assert stack.as_measured(row(backend="trtllm")).host.overlap


def test_servers_are_simulated_by_the_command_in_the_pattern_that_they_were_measured_in() -> None:
    burst = command(row(backend="sglang"))
    assert burst[:2] == ["simulate", "llama-3.1-8b"] and "closed" not in burst
    assert burst[burst.index("--num-requests") + 1] == "8"
    drawn = command(row(model="llama-3.1-70b"))
    assert drawn[drawn.index("--arrivals") + 1] == "closed"
    assert drawn[drawn.index("--input-len") + 1] == str(round(0.9 * 1024))


def test_a_burst_and_a_closed_loop_through_the_command() -> None:
    """In a burst half of the prompts come first; in a loop each waits for few."""
    loop, burst = simulate_rows([row(concurrency=32), row(concurrency=32, backend="sglang")])
    assert loop is not None and burst is not None
    assert burst.ttft > 3 * loop.ttft and burst.tpot < loop.tpot
    # 128 requests of 41,000 tokens do not fit into one device's cache: they queue.
    (full,) = simulate_rows([row(backend="sglang", concurrency=128, input=40000, output=100)])
    assert full is not None and full.full
    assert simulate_rows([row(model="llama-3.1-70b")]) == [None]


def test_an_interval_of_other_models_rows_covers_what_errs_like_them() -> None:
    """Errors drawn alike are within it as often as asked; those of a model that errs more not."""

    def judged(name: str, spread: float, random: Random) -> list[Judged]:
        ends = 1 / (1 + spread), 1 + spread
        rows = [row(model=name, ttft=random.uniform(*ends)) for _ in range(500)]
        return [Judged(each, Simulated(1.0, each.tpot, False), True) for each in rows]

    alike = [each for name in "abc" for each in judged(name, 1.0, Random(name))]
    assert coverage(alike)["TTFT"] == pytest.approx(SHARES["prefill"], abs=0.04)
    assert coverage([*alike, *judged("d", 9.0, Random("d"))])["TTFT"] < 0.70


@needs_data
@pytest.mark.parametrize("device", ["a100-80gb-sxm", "h100-sxm"])
def test_shipped_coefficients_hold_on_measured_products(device: str) -> None:
    """8 % is the goal for shapes that were not fitted; these may have been."""
    hardware, efficiency = load_hardware(device), load_efficiencies(device).gemm["bf16"]
    rows = [row for row in data.gemm_rows(device) if row.format == "bf16" and kernels.usual(row)]
    pairs = [kernels.gemm_pair(row, hardware, efficiency) for row in Random(1).sample(rows, 300)]
    assert kernels.mean(pairs) < 0.085


@needs_data
def test_a_table_of_measurements_returns_them() -> None:
    rows = [row for row in data.all_reduce_rows("h100-sxm") if row.ranks == 8]
    entries = make_tables.all_reduce_entries(rows)
    assert list(entries) == ["8"] and len(entries["8"]) == len(rows)
