"""Hardware sheets: complete, dense rates, found by usual names, errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.simulator.cost.hardware_sheet import SHEETS, hardware_names, load_hardware

PROMISED = {
    "a100-40gb-sxm",
    "a100-80gb-sxm",
    "h100-sxm",
    "h100-pcie",
    "h200",
    "b200",
    "gb200",
    "l40s",
    "l4",
    "a10",
    "mi300x",
    "mi325x",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
    "cpu",
}
# Every kind of number on a sheet. ``units``: compute units and cache.
SOURCED = {"rates", "bandwidth", "memory", "reserve", "units", "power", "price", "link", "network"}


def test_every_promised_device_has_a_sheet() -> None:
    assert set(hardware_names()) >= PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_sheet_is_complete_and_says_where_its_numbers_come_from(name: str) -> None:
    sheet = load_hardware(name)
    assert sheet.name == name and sheet.title
    # Measured with the rates.
    assert set(sheet.sources) >= SOURCED - ({"bandwidth", "reserve"} if name == "cpu" else set())
    assert all(sheet.sources.values())
    assert sheet.price_per_hour > 0 and sheet.power_watts > 0 and sheet.network_bandwidth > 0
    assert sheet.dense_flops["bf16"] > sheet.memory_bandwidth


def test_what_a_driver_keeps_is_counted_or_its_absence_is_named() -> None:
    """CUDA reports 0.3 to 0.9 GiB less than nvidia-smi; of AMD's devices it is not known."""
    for sheet in map(load_hardware, sorted(PROMISED - {"cpu"})):
        kept, source = sheet.reserved_bytes / 2**30, sheet.sources["reserve"]
        assert 0.3 < kept < 0.95 or (not kept and "not known" in source), sheet.name
        assert any(word in source for word in ("CUDA reports", "a guess", "not known")), sheet.name


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_rates_are_dense(name: str) -> None:
    """Half the bits, twice the rate. A sparse figure beside a dense one would be four times."""
    rates = load_hardware(name).dense_flops
    if "fp8" in rates:
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.02)
    if "fp4" in rates:
        # RTX 5090: float32 sums halve only the wider.
        assert rates["bf16"] * 4 <= rates["fp4"] <= rates["bf16"] * 8.01


def test_known_rates() -> None:
    """The figures that are most often taken from the sparse column."""
    assert load_hardware("h100").dense_flops["bf16"] == pytest.approx(989e12, rel=0.001)
    assert load_hardware("b200").dense_flops["fp4"] == pytest.approx(9e15)
    assert load_hardware("l4").dense_flops["bf16"] == pytest.approx(121e12)
    assert load_hardware("rtx-4090").dense_flops["bf16"] == pytest.approx(165.2e12)


def test_links_are_per_direction() -> None:
    """Data sheets add both directions: 600, 900 and 1,800 GB/s of NVLink, 128 of PCIe 5 x16."""
    per_direction = {"a100": 3e11, "h100": 4.5e11, "h200": 4.5e11, "b200": 9e11, "gb200": 9e11}
    per_direction |= {"h100-pcie": 6.4e10, "l4": 3.2e10, "mi300x": 4.48e11, "rtx-4090": 3.2e10}
    assert {name: load_hardware(name).link_bandwidth for name in per_direction} == per_direction


def test_names_are_unique_and_aliases_work() -> None:
    labels = [label for name in hardware_names() for label in (name, *load_hardware(name).aliases)]
    assert len(labels) == len(set(labels))
    assert load_hardware("H100").name == "h100-sxm"
    assert load_hardware("a100").name == "a100-80gb-sxm"


def test_an_unknown_device_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown device 'h10o'") as caught:
        load_hardware("h10o")
    assert caught.value.hint is not None and "h100" in caught.value.hint


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    text = (SHEETS / "h100-sxm.toml").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("price_per_hour = 2.69", "price_per_hour = 1.0"))
    assert load_hardware(str(file)).price_per_hour == 1.0


def test_a_data_sheet_needs_no_more_than_it_says(tmp_path: Path) -> None:
    """Cache, power, price and links decide nothing on one device; several need a link."""
    file = tmp_path / "new.toml"
    file.write_text(
        "memory_bytes = 96e9\nmemory_bandwidth = 4e12\ncompute_units = 132\n[dense_flops]\nbf16 ="
        " 8e14\n"
    )
    sheet = load_hardware(str(file))
    assert (sheet.memory_bytes, sheet.price_per_hour, sheet.link_domain) == (96_000_000_000, 0.0, 1)
    assert sheet.bandwidth_between(1) == 0.0
    with pytest.raises(ConfigError, match="does not say how 2 devices talk") as caught:
        sheet.bandwidth_between(2)
    assert "[link]" in str(caught.value.hint)
    file.write_text(file.read_text() + "[link]\nbandwidth = 1e11\ndomain = 4\n")
    assert load_hardware(str(file)).bandwidth_between(4) == 1e11
    with pytest.raises(ConfigError, match="8 devices") as caught:
        load_hardware(str(file)).bandwidth_between(8)
    assert "network_bandwidth" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_bandwidth = 3.35e12", "memory_bandwidth = 0", "memory_bandwidth must be a number"),
        # In GB/s.
        (
            "memory_bandwidth = 3.35e12",
            "memory_bandwidth = 3350",
            "memory_bandwidth must be a number",
        ),
        ("memory_bandwidth = 3.35e12", "memory_bandwidth = nan", "got nan"),
        ("memory_bandwidth = 3.35e12", 'memory_bandwidth = "3.35 TB/s"', "got '3.35 TB/s'"),
        ("memory_bandwidth", "memory_bandwith", "unknown memory_bandwith"),
        ("memory_bytes = 85520809984", "memory_bytes = inf", "memory_bytes must be a whole number"),
        ("compute_units = 132", "", "compute_units is missing"),
        ("compute_units = 132", "compute_units = 1.5", "compute_units must be a whole number"),
        ("bf16 = 9.894e14", "bf16 = -1", "dense_flops.bf16"),
        ("bf16 = 9.894e14", "fp16 = 9.894e14", "unknown dense_flops.fp16"),
        ("price_per_hour = 2.69", "price_per_hour = nan", "price_per_hour"),
        ("domain = 8", "domain = 0", "link.domain"),
        ("[link]", "[lnk]", "unknown lnk"),
    ],
)
def test_mistakes_in_a_sheet_are_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text((SHEETS / "h100-sxm.toml").read_text().replace(old, new))
    with pytest.raises(ConfigError, match=words) as caught:
        load_hardware(str(file))
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"", b"a = " + b"[" * 100_000, b"dense_flops = 5", b"link = 5"]
)
def test_files_that_are_no_sheet_are_one_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        load_hardware(str(file))


def test_cards_that_talk_through_the_host_need_no_network() -> None:
    """Eight consumer cards stand in one machine as eight others do."""
    assert load_hardware("rtx-4090").bandwidth_between(8) == load_hardware(
        "l40s"
    ).bandwidth_between(8)


def test_a_missing_rate_falls_back_to_a_wider_format(tmp_path: Path) -> None:
    assert load_hardware("a100").compute_format("fp4") == "bf16"
    assert load_hardware("h100").compute_format("fp4") == "fp8"
    file = tmp_path / "narrow.toml"
    file.write_text((SHEETS / "a10.toml").read_text().replace("fp32 =", "fp8 ="))
    with pytest.raises(ConfigError, match="no rate for fp32"):
        load_hardware(str(file)).compute_format("fp32")


def test_the_sheet_in_the_documentation_can_be_used(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "simulator.md").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.split("```toml\n")[1].split("```")[0])
    sheet = load_hardware(str(file))
    assert sheet.bandwidth_between(16) == sheet.network_bandwidth > 0
