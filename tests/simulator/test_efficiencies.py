"""Files of coefficients: all complete, laid over each other as said, errors by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.errors import ConfigError
from twostroke.simulator.efficiencies import load_efficiencies
from twostroke.simulator.hardware_sheet import hardware_names


@pytest.mark.parametrize("device", hardware_names())
def test_coefficients_of_every_device_are_complete_and_sane(device: str) -> None:
    found = load_efficiencies(device)
    for gemm in found.gemm.values():
        assert 0.3 < gemm.compute <= 1.1 and 0.3 < gemm.memory <= 1.1
    assert found.interval.decode_low < 1 < found.interval.decode_high
    assert found.interval.prefill_low < 1 < found.interval.prefill_high


def test_a_device_without_a_file_gets_the_default() -> None:
    assert load_efficiencies("b200") == load_efficiencies("nothing-like-it")
    assert load_efficiencies("h100-sxm").gemm != load_efficiencies("b200").gemm
    assert load_efficiencies("h200").gemm == load_efficiencies("h100-sxm").gemm


def test_devices_without_links_share_the_hosts_paths() -> None:
    assert (
        load_efficiencies("rtx-4090", link="PCIe 4 x16").all_reduce == load_efficiencies("l40s", link="PCIe").all_reduce
    )
    assert (
        load_efficiencies("rtx-4090", link="PCIe").all_reduce.crowding > load_efficiencies("b200").all_reduce.crowding
    )
    assert load_efficiencies("h100-pcie", link="PCIe 5 x16").gemm == load_efficiencies("h100-sxm").gemm


def test_ones_own_file_goes_before_all_others(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[host]\nstep = 0.5\n")
    found = load_efficiencies("h100-sxm", own, stack="sglang")
    assert found.host.step == 0.5
    assert found.host.request == load_efficiencies("h100-sxm", stack="sglang").host.request
    assert found.gemm == load_efficiencies("h100-sxm").gemm


def test_mistakes_are_named(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[decode]\nspeed = 3\n")
    with pytest.raises(ConfigError, match=r"\[decode\]: unknown coefficients speed"):
        load_efficiencies("h100-sxm", own)
    own.write_text("[decode\n")
    with pytest.raises(ConfigError, match="cannot read"):
        load_efficiencies("h100-sxm", own)
    with pytest.raises(ConfigError, match="unknown serving stack 'lmdeploy'"):
        load_efficiencies("h100-sxm", stack="lmdeploy")
