"""What a calibration was measured on: written, read back, shown, compared with the simulation."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.calibration.calibrate import Calibration
from twostroke.simulator.calibration.efficiencies_file import as_toml
from twostroke.simulator.cost.efficiencies import load_efficiencies
from twostroke.simulator.cost.measured_on import MeasuredOn, as_text, processor_name
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions

ON = MeasuredOn(
    machine='A "fast" processor',
    device="cpu",
    threads=2,
    model="pilot",
    parameters=find_model("pilot").num_parameters,
    weights="fp32",
    twostroke="1.0",
    torch="2.13.0",
    date="2026-11-21",
)


def written(tmp_path: Path, on: MeasuredOn | None) -> Path:
    file = tmp_path / "own.toml"
    file.write_text(as_toml(Calibration(load_efficiencies("cpu"), [], []), "a test", None, on))
    return file


def notes(
    file: Path, *, model: str = "pilot", gpu: str = "cpu", weights: str = "fp32"
) -> list[str]:
    options = DeploymentOptions(model=model, gpu=gpu, efficiencies=str(file), weight_dtype=weights)
    notes = deploy(options, CacheConfig(), SchedulerConfig()).notes
    return [note for note in notes if "own.toml" in note]


def test_what_was_measured_is_read_back_and_shown(tmp_path: Path) -> None:
    file = written(tmp_path, ON)
    assert load_efficiencies("cpu", file).measured == ON
    (note,) = notes(file)
    for words in (
        ON.machine,
        "2 threads",
        "pilot in fp32",
        "twostroke 1.0",
        "torch 2.13.0",
        "2026-11-21",
    ):
        assert words in note
    assert load_efficiencies("cpu", written(tmp_path, None)).measured is None
    assert notes(file) == []


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"model": "pilot-draft"}, "model pilot of "),
        ({"weights": "int8"}, "weights in fp32, not int8"),
        ({"gpu": "h100"}, "device cpu, not h100-sxm"),
    ],
)
def test_another_device_model_or_format_is_one_warning(
    tmp_path: Path, options: dict[str, str], difference: str
) -> None:
    shown, warned = notes(written(tmp_path, ON), **options)
    assert ON.machine in shown and "measured on something else" in warned and difference in warned


def test_what_a_file_does_not_say_is_no_difference(tmp_path: Path) -> None:
    (shown,) = notes(written(tmp_path, MeasuredOn(device="cpu")), weights="int8")
    assert shown.endswith("measured on cpu")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("threads = -1", "threads"),
        ("threads = true", "threads"),
        ("machine = 7", "machine"),
        (f'date = "{"x" * 1000}"', "date"),
        ('model = "a\\u001b[31m"', "model"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: Path, line: str, name: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[measured]\n{line}\n")
    with pytest.raises(ConfigError, match=rf"\[measured\]: {name} must be"):
        load_efficiencies("cpu", file)
    file.write_text("measured = 3\n")
    with pytest.raises(ConfigError, match="measured must be a table"):
        load_efficiencies("cpu", file)


def test_fields_of_later_versions_are_no_error(tmp_path: Path) -> None:
    file = written(tmp_path, ON)
    file.write_text(file.read_text() + 'governor = "performance"\n')
    assert tomllib.loads(file.read_text())["measured"]["governor"]
    assert load_efficiencies("cpu", file).measured == ON


@pytest.mark.parametrize("name", ["/models/" + "x" * 300, "non\u00a0breaking", "delete\x7f"])
def test_every_name_can_be_kept(tmp_path: Path, name: str) -> None:
    on = replace(ON, model=as_text(name))
    assert load_efficiencies("cpu", written(tmp_path, on)).measured == on


def test_processors_have_names() -> None:
    assert processor_name()
    assert MeasuredOn().describe() == "an unnamed machine"
    assert replace(ON, threads=1).describe().count("thread,") == 1
