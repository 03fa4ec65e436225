"""Kernels of the cost model on their own: products, attention, all-reduce."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from msgspec.structs import astuple

from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.simulator.cost.attention_cost import DecodeAttention, DeviceShare, PrefillAttention
from twostroke.simulator.cost.communication import all_gather_time, all_reduce_time
from twostroke.simulator.cost.efficiencies import GemmEfficiency, load_efficiencies
from twostroke.simulator.cost.gemm import PARTIAL_BYTES, SPLITS, TILES, Product
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.kernel_time import KernelTime, combine

H100 = load_hardware("h100")
EFFICIENCIES = load_efficiencies("h100-sxm")
LAYER = AttentionSpec(32, 8, 128, 128)


def product(rows: float, efficiency: GemmEfficiency) -> float:
    return (
        Product(
            4096,
            4096,
            efficiency=efficiency,
            flops=1e15,
            bandwidth=3e12,
            units=132,
            weight_bytes=2.0,
        )
        .time(rows)
        .seconds
    )


def test_overlap_lies_between_the_longer_and_the_sum() -> None:
    assert combine(3.0, 4.0, 0.5, 1.0) == KernelTime(7.5, 0.0, 7.0, 0.5)
    assert combine(3.0, 4.0, 0.0, 2.0).seconds == pytest.approx(5.0)
    assert combine(3.0, 4.0, 0.0, 200.0).seconds == pytest.approx(4.0)
    assert combine(4.0, 3.0, 0.0, 2.0).compute == pytest.approx(5.0)
    assert combine(0.0, 0.0, 0.5, 2.0).seconds == 0.5


def test_a_device_without_tiles_is_a_plain_roofline() -> None:
    plain = GemmEfficiency(
        compute=0.5,
        memory=0.5,
        half_tile=0,
        prologue=0,
        waves=0,
        split=0,
        launch=1e-6,
        sharpness=1.0,
    )
    moved = 2 * 4096 * 4096 + 2 * 7 * 8192
    assert product(7, plain) == pytest.approx(1e-6 + moved / 1.5e12 + 2 * 7 * 4096 * 4096 / 0.5e15)


def test_rows_cost_by_whole_tiles_and_waves() -> None:
    """With last waves at full price, time stands still until the tiles need another wave."""
    stepped = GemmEfficiency(
        compute=0.9,
        memory=0.9,
        half_tile=3000,
        prologue=100,
        waves=1,
        split=1e-3,
        launch=0,
        sharpness=50,
    )
    assert product(1025, stepped) == pytest.approx(product(1088, stepped), rel=0.02)
    assert product(8192, stepped) == pytest.approx(8 * product(1024, stepped), rel=0.25)
    rows = range(64, 8192, 64)
    times = [product(count, stepped) for count in rows]
    assert times == sorted(times) and len(set(times)) < len(times) / 2


def test_few_tiles_are_split_along_the_inner_dimension() -> None:
    """64 rows of a narrow product keep few units busy; splitting helps until the sum costs more."""
    cheap = EFFICIENCIES.gemm["bf16"]

    def narrow(split: float) -> float:
        values = {name: getattr(cheap, name) for name in GemmEfficiency.__slots__}
        efficiency = GemmEfficiency(**{**values, "split": split})
        return (
            Product(
                512,
                16384,
                efficiency=efficiency,
                flops=1e15,
                bandwidth=3e12,
                units=132,
                weight_bytes=2.0,
            )
            .time(256)
            .seconds
        )

    assert narrow(1e-6) < narrow(1.0)


def fastest_tile(rows: int, e: GemmEfficiency) -> float:
    """Seconds of arithmetic, every tile and every split tried."""
    times = []
    for tile_rows, width in TILES:
        step = 2.0 * (tile_rows * width + e.half_tile) * 132 / (e.compute * 1e15)
        for split in SPLITS:
            tiles = ceil(rows / tile_rows) * ceil(6144 / width) * split / 132
            waves = e.waves * ceil(tiles) + (1 - e.waves) * max(tiles, 1.0)
            time = waves * step * (4096 / split + e.prologue)
            if split > 1:
                time += e.split + PARTIAL_BYTES * rows * 6144 * split / (e.memory * 3e12)
            times.append(time)
    return min(times)


@pytest.mark.parametrize("waves", [0.0, 0.4, 1.0])
def test_what_is_not_tried_would_not_have_been_faster(waves: float) -> None:
    """Skipped tiles and splits, and results kept for sixteen rows, change no time."""
    e = replace(EFFICIENCIES.gemm["bf16"], waves=waves)
    product = Product(
        6144, 4096, efficiency=e, flops=1e15, bandwidth=3e12, units=132, weight_bytes=2.0
    )
    for rows in [*range(1, 600, 7), *range(600, 9000, 61), *range(1000, 1040)]:
        memory = (2.0 * 6144 * 4096 + 2.0 * rows * (4096 + 6144)) / (e.memory * 3e12)
        naive = combine(fastest_tile(rows, e), memory, e.launch, e.sharpness)
        assert astuple(product.time(rows)) == pytest.approx(astuple(naive), rel=1e-12)


def test_decoding_reads_the_cache_once() -> None:
    def seconds(context: float, cache_bytes: float = 2.0, queries: int = 1) -> float:
        share = DeviceShare(flops=1e15, bandwidth=3e12, units=132, cache_bytes=cache_bytes)
        attention = DecodeAttention(LAYER, EFFICIENCIES.decode, share)
        return attention.time(32, context, queries).seconds

    added = seconds(2_000_000) - seconds(1_000_000)
    assert added > 1_000_000 * 4096 / 3e12
    assert added < 1.5 * 1_000_000 * 4096 / 3e12
    assert seconds(2_000_000, cache_bytes=1.0) < 0.65 * seconds(2_000_000)
    assert seconds(2_000_000, queries=4) < 2 * seconds(2_000_000)


def test_prefill_is_quadratic_and_chunks_add_up() -> None:
    def seconds(*chunks: tuple[int, int]) -> float:
        share = DeviceShare(flops=1e15, bandwidth=3e12, units=132)
        return PrefillAttention(LAYER, EFFICIENCIES.prefill, share).time(chunks).seconds

    assert 3.3 < seconds((32768, 0)) / seconds((16384, 0)) < 4.1
    whole, halves = seconds((16384, 0)), seconds((8192, 0)) + seconds((8192, 8192))
    assert whole < halves < 1.2 * whole


def test_all_reduce() -> None:
    def seconds(size: float, ranks: int) -> float:
        return all_reduce_time(size, ranks, efficiency=EFFICIENCIES.all_reduce, link=450e9)

    assert seconds(1e6, 1) == 0.0 and seconds(0, 8) == 0.0
    times = [seconds(2.0**power, 8) for power in range(8, 31)]
    assert times == sorted(times)
    assert 2e-6 < times[0] < 1e-5  # a start, nothing moved
    assert times[-1] > 2 * 7 / 8 * 2**30 / 450e9 / 1.5
    gathered = all_gather_time(1e6, 8, efficiency=EFFICIENCIES.all_reduce, link=450e9)
    assert 0 < gathered < seconds(1e6, 8)
