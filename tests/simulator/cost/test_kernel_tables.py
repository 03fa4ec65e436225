"""Kernel tables: exact at points, interpolated between them, the model where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twostroke.core.errors import ConfigError
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.simulator.cost.attention_cost import DeviceShare, PrefillAttention
from twostroke.simulator.cost.communication import all_reduce_time
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.gemm import Product
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.cost.kernel_time import KernelTime

H100 = load_hardware("h100")
EFFICIENCIES = load_efficiencies("h100-sxm")


def modelled(rows: float, outputs: int, inputs: int) -> KernelTime:
    return Product(
        outputs,
        inputs,
        efficiency=EFFICIENCIES.gemm["bf16"],
        flops=H100.dense_flops["bf16"],
        bandwidth=H100.memory_bandwidth,
        units=H100.compute_units,
        weight_bytes=2.0,
    ).time(rows)


def tables(**raw: Any) -> KernelTables:
    return KernelTables(raw, H100, EFFICIENCIES)


def slower(rows: int, outputs: int, inputs: int, factor: float) -> list[float]:
    return [rows, factor * modelled(rows, outputs, inputs).seconds]


def test_a_point_of_the_table_is_its_measurement() -> None:
    measured = tables(gemm={"bf16": [[4096, 4096, [[64, 31e-6], [256, 47e-6]]]]})
    for rows, seconds in ((64, 31e-6), (256, 47e-6)):
        time = measured.gemm("bf16", rows, 4096, 4096, modelled(rows, 4096, 4096))
        assert time.seconds == pytest.approx(seconds)
        # What it waits for keeps its share.
        before = modelled(rows, 4096, 4096)
        assert time.memory / time.seconds == pytest.approx(before.memory / before.seconds)


def test_between_points_the_ratio_is_interpolated_and_beyond_them_kept() -> None:
    points = [slower(64, 8192, 8192, 2.0), slower(256, 8192, 8192, 8.0)]
    measured = tables(gemm={"bf16": [[8192, 8192, points]]})
    for rows, factor in ((64, 2), (128, 4), (256, 8), (1, 2), (4096, 8)):
        before = modelled(rows, 8192, 8192)
        assert measured.gemm("bf16", rows, 8192, 8192, before).seconds == pytest.approx(
            factor * before.seconds
        )


def test_an_unknown_shape_goes_by_its_neighbours() -> None:
    entries = [[n, n, [slower(64, n, n, factor)]] for n, factor in ((2048, 2.0), (8192, 4.0))]
    measured = tables(gemm={"bf16": entries})
    before = modelled(64, 4096, 4096)
    assert measured.gemm("bf16", 64, 4096, 4096, before).seconds == pytest.approx(
        8**0.5 * before.seconds
    )


def test_a_measurement_from_the_cache_is_not_believed() -> None:
    """Weights of 32 MB read in a microsecond were never read from memory."""
    measured = tables(gemm={"bf16": [[4096, 4096, [[1, 1e-6]]]]})
    seconds = measured.gemm("bf16", 1, 4096, 4096, modelled(1, 4096, 4096)).seconds
    assert seconds == pytest.approx(2 * 4096 * 4096 / H100.memory_bandwidth)


def test_what_a_table_lacks_stays_as_modelled() -> None:
    measured = tables(gemm={"bf16": [[4096, 4096, [[64, 31e-6]]]]})
    before = modelled(64, 4096, 4096)
    assert measured.gemm("fp8", 64, 4096, 4096, before) == before
    assert measured.decode(32, 8, 128, 4, 1000, before) == before
    assert measured.prefill(32, 8, 128, 1, 1000, before) == before
    assert measured.all_reduce(1000, 2, 5e-6) == 5e-6


def test_attention_and_all_reduce() -> None:
    measured = tables(
        decode=[[32, 8, 128, 4, [[1024, 20e-6], [4096, 50e-6]]]],
        prefill=[[32, 8, 128, 1, [[1024, 40e-6]]]],
        all_reduce={"4": [[65536, 7e-6]]},
    )
    base = KernelTime(1.0)
    short, long = (measured.decode(32, 8, 128, 4, tokens, base).seconds for tokens in (1024, 4096))
    assert short != long and short > 0
    assert measured.prefill(32, 8, 128, 1, 1024, base).seconds > 0
    before = all_reduce_time(65536, 4, efficiency=EFFICIENCIES.all_reduce, link=H100.link_bandwidth)
    assert measured.all_reduce(65536, 4, before) == pytest.approx(7e-6)


def test_between_two_points_nothing_leaves_their_times() -> None:
    """Short prompts take a kernel's start time; the model's tile steps must not show through."""
    flat = tables(prefill=[[32, 8, 128, 64, [[16, 20e-6], [256, 22e-6]]]])
    for length in (17, 48, 64, 65, 128, 200, 255):
        layer, chunks = AttentionSpec(32, 8, 128, 128), ((length, 0),) * 64
        share = DeviceShare(
            flops=H100.dense_flops["bf16"],
            bandwidth=H100.memory_bandwidth,
            units=H100.compute_units,
        )
        modelled_ = PrefillAttention(layer, EFFICIENCIES.prefill, share).time(chunks)
        assert flat.prefill(32, 8, 128, 64, length, modelled_).seconds * (1 + 1e-9) >= 20e-6
        assert flat.prefill(32, 8, 128, 64, length, modelled_).seconds <= 22e-6 * (1 + 1e-9)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"gemm": {"bf16": [[4096, 4096, [[64, 31e-6]]]]}}))
    read = KernelTables.read(file, H100, EFFICIENCIES)
    assert read.gemm("bf16", 64, 4096, 4096, modelled(64, 4096, 4096)).seconds == pytest.approx(
        31e-6
    )


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[" * 100_000,
        '{"gemm": 5}',
        '{"gemm": {"bf17": []}}',
        '{"gemm": {"bf16": []}}',
        '{"gemm": {"bf16": [[4096, 4096, []]]}}',
        '{"gemm": {"bf16": [[0, 4096, [[1, 1]]]]}}',
        '{"gemm": {"bf16": [[4096, 4096, [[16, 1e999]]]]}}',
        '{"decode": [[32, 8, 128, 0, [[100, 0.1]]]]}',
        '{"decode": [[32, 0, 128, 4, [[100, 0.1]]]]}',
        '{"decode": [[32, 8, 128, 4, [[100, "x"]]]]}',
        '{"prefill": [[32, 8, 128, 1, [[100, NaN]]]]}',
        '{"all_reduce": {"2": []}}',
        '{"all_reduce": {"2": [[0, 1]]}}',
    ],
    ids=lambda text: text[:50],
)
def test_what_is_no_table_is_refused_when_it_is_read(text: str, tmp_path: Path) -> None:
    """And not by a traceback in the first step that needs it."""
    file = tmp_path / "table.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="cannot read kernel tables"):
        KernelTables.read(file, H100, EFFICIENCIES)


def test_an_all_reduce_takes_no_longer_than_a_larger_one() -> None:
    """One stalled measurement does not make its neighbours slow."""
    quiet = [[1024, 5e-6], [4096, 5.5e-6], [16384, 6e-6], [65536, 9e-6]]
    stalled = [[1024, 5e-6], [4096, 15e-6], [16384, 6e-6], [65536, 9e-6]]
    without_stall, with_stall = tables(all_reduce={"8": quiet}), tables(all_reduce={"8": stalled})
    for size in (2048, 8192, 32768):
        time = all_reduce_time(
            size, 8, efficiency=EFFICIENCIES.all_reduce, link=H100.link_bandwidth
        )
        expected = without_stall.all_reduce(size, 8, time)
        assert with_stall.all_reduce(size, 8, time) == pytest.approx(expected, rel=0.1)


def test_a_file_without_kernels_is_no_table(tmp_path: Path) -> None:
    """A config.json, say: nothing in it corrects anything."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="it holds no kernels"):
        KernelTables.read(file, load_hardware("h100"), load_efficiencies("h100-sxm"))
