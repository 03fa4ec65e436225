"""Files of coefficients: complete, in the stated order of precedence, errors by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import SHARED, Efficiencies, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import hardware_names, load_hardware
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.cost.told_sources import sources


@pytest.mark.parametrize("device", hardware_names())
def test_coefficients_of_every_device_are_complete_and_sane(device: str) -> None:
    efficiencies = load_efficiencies(device)
    for gemm in efficiencies.gemm.values():
        assert 0.3 < gemm.compute <= 1.1 and 0.3 < gemm.memory <= 1.1
    assert efficiencies.interval.decode_low < 1 < efficiencies.interval.decode_high
    assert efficiencies.interval.prefill_low < 1 < efficiencies.interval.prefill_high


def test_a_device_without_a_file_gets_the_default() -> None:
    assert load_efficiencies("mi300x") == load_efficiencies("nothing-like-it")
    assert load_efficiencies("h100-sxm").gemm != load_efficiencies("mi300x").gemm
    assert load_efficiencies("h200").gemm == load_efficiencies("h100-sxm").gemm
    assert load_efficiencies("gb200").experts == load_efficiencies("b200").experts


def test_a_stack_has_kernels_of_its_own_where_they_were_measured() -> None:
    """Other stacks and devices keep theirs."""
    own, usual = (load_efficiencies("h200", stack=stack) for stack in ("trtllm", "vllm"))
    assert own.gemm["fp8"] != usual.gemm["fp8"] and own.experts != usual.experts
    assert own.gemm["bf16"] == usual.gemm["bf16"] and own.decode == usual.decode
    assert own.origins["experts.bf16"].startswith("fitted to TensorRT-LLM's kernels")
    assert load_efficiencies("l40s", stack="trtllm").gemm == load_efficiencies("l40s").gemm
    assert usual.gemm == load_efficiencies("h200").gemm


def test_relatives_take_what_was_measured() -> None:
    """Dies of one kind reach the same shares of their rates."""
    for measured, relatives in (("b200", ("gb200", "b300")), ("h100-sxm", ("h200", "h100-pcie"))):
        for relative in relatives:
            assert load_efficiencies(relative).gemm == load_efficiencies(measured).gemm


def test_formats_take_the_next_coefficients_that_there_are() -> None:
    h100 = load_efficiencies("h100-sxm")
    assert h100.gemm_for("int4", "bf16") == h100.gemm["bf16"]
    assert h100.gemm_for("fp8_block", "fp8") == h100.gemm["fp8_block"] != h100.gemm["fp8"]
    assert h100.experts_for("mxfp4", "fp8") == h100.experts["mxfp4"]
    assert load_efficiencies("cpu").experts_for("bf16") is None  # computes no tiles


def test_the_origins_name_what_each_part_was_fitted_on() -> None:
    """Neither a relative's measurements nor a stack's or a link's stand for all parts."""
    h200 = load_efficiencies("h200", stack="vllm").origins
    assert h200["gemm.bf16"].endswith("on NVIDIA H100 80GB SXM5")
    assert h200["host"] == "fitted to public measurements of vllm on H100"
    a100 = load_efficiencies("a100-80gb-sxm").origins
    assert a100["gemm.bf16"].endswith("on NVIDIA A100 80GB SXM4")
    assert a100["experts.bf16"].endswith("on H100 and B200 together")
    rtx = load_efficiencies("rtx-4090", link="PCIe 4 x16").origins
    assert "A100, H100 and L40S" in rtx["gemm.bf16"] and rtx["all_reduce"].endswith("on L40S")
    assert rtx["interval"].startswith("fitted to public measurements of vllm on H100")


def test_a_models_parts_name_their_sources(tmp_path: Path) -> None:
    """Those that it has, once each, with one's own file before all others."""
    own = tmp_path / "own.toml"
    own.write_text('source = "my servers"\n[host]\nstep = 0.001\n')
    told = sources(_cost(load_efficiencies("a100-80gb-sxm", own), "llama-3.1-8b"))
    shared = ["norms and copies"]
    parts = [["products", "attention"], shared, ["host"], ["whole steps"], ["interval"]]
    assert list(told.values()) == parts and told["set by hand"] == shared
    assert told["my servers"] == ["host"]
    experts = sources(
        _cost(load_efficiencies("h200", stack="vllm"), "gpt-oss-120b", Parallel(tensor=2))
    )
    assert experts[load_efficiencies("h200").origins["experts.mxfp4"]] == ["experts"]
    assert any("collectives" in parts for parts in experts.values())


def test_what_moves_between_groups_is_no_all_reduce() -> None:
    """Tokens that go to experts of other groups, and from one group of layers to the next."""
    h200 = load_efficiencies("h200", stack="vllm")
    for parallel in (Parallel(data=8, expert=True), Parallel(pipeline=2)):
        told = sources(_cost(h200, "deepseek-v3", parallel))
        parts = [part for each in told.values() for part in each]
        assert "moves between groups" in parts and "collectives" not in parts
        assert any(source.startswith("NCCL") for source in told)
    assert not any("moves" in str(each) for each in sources(_cost(h200, "deepseek-v3")).values())


def test_prefill_and_measured_kernels_are_named_apart(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('source = "my prompts"\n[prefill]\nlaunch = 1e-6\n')
    mine = load_efficiencies("h100-sxm", own)
    assert sources(_cost(mine, "llama-3.1-8b"))["my prompts"] == ["attention"]
    raw = {"gemm": {"bf16": [[4096, 4096, [[16, 1e-4], [64, 1e-4]]]]}}
    tables = KernelTables(raw, load_hardware("h200"), mine)
    told = sources(_cost(mine, "llama-3.1-8b", tables=tables))
    assert told["corrected by --kernel-tables where it has them"] == ["products"]


def _cost(
    efficiencies: Efficiencies,
    model: str,
    parallel: Parallel | None = None,
    tables: KernelTables | None = None,
) -> RooflineCostModel:
    hardware = load_hardware("h200")
    return RooflineCostModel(
        hardware, find_model(model), parallel or Parallel(), Dtypes(), efficiencies, tables=tables
    )


def test_devices_without_links_share_the_hosts_paths() -> None:
    assert (
        load_efficiencies("rtx-4090", link="PCIe 4 x16").all_reduce
        == load_efficiencies("l40s", link="PCIe").all_reduce
    )
    assert (
        load_efficiencies("rtx-4090", link="PCIe").all_reduce.crowding
        > load_efficiencies("b200").all_reduce.crowding
    )
    assert (
        load_efficiencies("h100-pcie", link="PCIe 5 x16").gemm == load_efficiencies("h100-sxm").gemm
    )


def test_ones_own_file_goes_before_all_others(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[host]\nstep = 0.5\n")
    efficiencies = load_efficiencies("h100-sxm", file, stack="sglang")
    assert efficiencies.host.step == 0.5
    assert efficiencies.host.request == load_efficiencies("h100-sxm", stack="sglang").host.request
    assert efficiencies.gemm == load_efficiencies("h100-sxm").gemm


def test_any_processors_sheet_gets_coefficients_of_processors() -> None:
    """Tiles of a GPU would make a CPU's products many times too slow or too fast."""
    link = load_hardware("cpu").link_kind
    assert load_efficiencies("my-workstation", link=link) == load_efficiencies("cpu")
    assert load_efficiencies(SHARED, link=link).gemm["bf16"].half_tile == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gemm.bf16]\ncompute = 0", "compute must be above 0"),
        ("[gemm.bf16]\ncompute = nan", "compute must be above 0"),
        ("[gemm.bf16]\ncompute = 'x'", "compute must be above 0"),
        ("[host]\nstep = -5", "step must be 0 or more"),
        ("[host]\noverlap = 'no'", "overlap must be true or false"),
        ("[all_reduce]\ncrowding = inf", "crowding must be a number"),
        ("[step]\ndecode = 'x'", "decode must be above 0"),
        ("[step]\nprefil = 1", "unknown coefficients prefil"),
        ("[interval]\ndecode_low = -1", "decode_low must be above 0"),
        ("[hots]\nstep = 1", r"unknown table \[hots\]"),
        ("gemm = 5", "gemm must be a table"),
        ("[gemm]\nbf16 = 5", "gemm must be a table"),
    ],
)
def test_unusable_coefficients_are_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_efficiencies("h100-sxm", file)
    assert caught.value.hint


def test_mistakes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[decode]\nspeed = 3\n")
    with pytest.raises(ConfigError, match=r"\[decode\]: unknown coefficients speed"):
        load_efficiencies("h100-sxm", file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        load_efficiencies("h100-sxm", file)
    file.write_text("[decode\n")
    with pytest.raises(ConfigError, match="cannot read"):
        load_efficiencies("h100-sxm", file)
    with pytest.raises(ConfigError, match="unknown serving stack 'lmdeploy'"):
        load_efficiencies("h100-sxm", stack="lmdeploy")
