"""Where times come from, by flag: coefficients, the data sheet, tables, serving stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.timing.step_shape import StepShape

DECODE = StepShape(16, 16 * 1000, (), 16)
PROMPT = StepShape(0, 0, ((16, 0),), 1)


def seconds(shape: StepShape = DECODE, **options: Any) -> float:
    deployed = deploy(DeploymentOptions(**options), CacheConfig(), SchedulerConfig())
    return deployed.cost.step(shape).seconds


def test_a_data_sheet_alone_knows_nothing_of_the_device() -> None:
    assert seconds(gpu="h100", efficiencies="data-sheet") != seconds(gpu="h100")
    # Without measurements of this device both are the same.
    assert seconds(gpu="mi300x", efficiencies="data-sheet") == seconds(gpu="mi300x")


def test_a_serving_stack_brings_its_host_times() -> None:
    """Two of them hide the host behind the device, and one starts a prompt's layers slowly."""
    sglang, vllm, trtllm = (
        (seconds(serving_stack=stack), seconds(PROMPT, serving_stack=stack))
        for stack in ("sglang", "vllm", "trtllm")
    )
    assert vllm[0] == trtllm[0] < sglang[0]
    assert vllm[1] < sglang[1] < trtllm[1]
    with pytest.raises(ConfigError, match="--serving-stack must be one of sglang, trtllm, vllm"):
        DeploymentOptions(serving_stack="lmdeploy")


def test_tables_go_before_coefficients(tmp_path: Path) -> None:
    file = tmp_path / "h100.json"
    # The gate-up product of Llama 3.1 8B, a hundred times slower than any device.
    file.write_text(
        json.dumps(
            {"device": "h100-sxm", "gemm": {"bf16": [[28672, 4096, [[16, 0.01], [64, 0.01]]]]}}
        )
    )
    assert seconds(kernel_tables=file) > 0.3 > 10 * seconds()
    with pytest.raises(ConfigError, match="has kernels of h100-sxm, not of a100-80gb-sxm"):
        seconds(gpu="a100", kernel_tables=file)


def test_ones_own_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[host]\nstep = 0.5\n")
    assert seconds(efficiencies=str(file)) > 0.5
    with pytest.raises(ConfigError, match="cannot read") as raised:
        seconds(efficiencies="datasheet")
    assert "data-sheet" in (raised.value.hint or "")


def test_a_sheet_of_ones_own_with_a_known_kind_of_link(tmp_path: Path) -> None:
    """A card on PCIe shares the host's paths, whatever its name."""
    text = (
        Path(__file__).parents[3] / "src/twostroke/simulator/cost/hardware_files/l40s.toml"
    ).read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text)
    pcie = seconds(gpu=str(file), tp=4)
    file.write_text(text.replace('kind = "PCIe 4 x16"', 'kind = "a switch"'))
    assert seconds(gpu=str(file), tp=4) < pcie
