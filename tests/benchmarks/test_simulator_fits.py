"""Protects: fast forms of the cost model equal the real ones; coefficients hold on data."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from benchmarks.simulator import data, kernels, make_tables
from benchmarks.simulator.search import search
from benchmarks.simulator.serving import Closed, Stack, waiting
from benchmarks.simulator.vector import GemmBatch
from twostroke.simulator.cost.efficiencies import HostEfficiency, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import load_hardware

H100 = load_hardware("h100")
needs_data = pytest.mark.skipif(not data.present(), reason=f"no measurements at {data.DATA}")


def test_the_fast_form_of_products_is_the_real_one() -> None:
    rows = [
        data.GemmRow(format_, m, n, k, 1.0)
        for format_ in ("bf16", "fp8")
        for m in (1, 17, 300, 8192)
        for n, k in ((512, 8192), (28672, 4096))
    ]
    for efficiency in load_efficiencies("h100-sxm").gemm.values():
        fast = GemmBatch([(row, H100) for row in rows]).seconds(asdict(efficiency))
        real = [kernels.gemm_seconds(row, H100, efficiency) for row in rows]
        assert fast == pytest.approx(real)


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


def row(**more: object) -> data.ServingRow:
    values: dict[str, object] = {
        "backend": "vllm",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "weights": "bf16",
        "ranks": 1,
        "input": 1024,
        "output": 128,
        "concurrency": 8,
        "ttft": 0.1,
        "tpot": 0.01,
    }
    return data.ServingRow(**{**values, **more})  # type: ignore[arg-type]


def test_a_row_waits_if_its_output_length_delays_its_first_token() -> None:
    rows = [
        row(),
        row(output=512, ttft=0.12),
        row(output=1024, ttft=0.2),
        row(concurrency=16, ttft=0.5),
    ]
    assert waiting(rows) == [False, False, True, False]


def test_a_server_in_a_closed_loop() -> None:
    closed = Closed(H100, load_efficiencies("h100-sxm"))
    stack = Stack(HostEfficiency(step=0.001, request=1e-5, token=0.0))
    few, many = closed.predict(row(), stack), closed.predict(row(concurrency=64), stack)
    assert 0.005 < few.tpot < many.tpot < 0.1 and few.ttft < many.ttft
    assert not few.full
    # 128 requests of 41,000 tokens do not fit into one device's cache: they queue.
    assert closed.predict(row(concurrency=128, input=40000, output=1000), stack).full


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
