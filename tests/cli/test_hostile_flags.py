"""Whatever is given to a flag of simulate, bench and calibrate: success, or one error and a hint.

By hand, with many more: ``TWOSTROKE_FUZZ_EXAMPLES=5000 pytest tests/cli/test_hostile_flags.py
tests/cli/test_hostile_files.py``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.cli.hostile import NUMBERS, TEXTS, hostile_paths, outcome
from twostroke.bench.options import OfflineBenchOptions, ServeBenchOptions, WorkloadOptions
from twostroke.core.config import CacheConfig, ModelOptions, SchedulerConfig
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.simulator.calibration.options import CalibrationOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.options import OutputOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

EXAMPLES = int(os.environ.get("TWOSTROKE_FUZZ_EXAMPLES", "60"))


class Command(NamedTuple):
    """A command, the classes from whose fields its flags come, and flags that keep a run short."""

    words: tuple[str, ...]
    options: tuple[type, ...]
    short: dict[str, str]


# Where no model is, the run ends there; nothing listens at port 9.
COMMANDS = (
    Command(
        ("simulate",),
        (
            DeploymentOptions,
            SimulatedWorkloadOptions,
            OutputOptions,
            SchedulerConfig,
            CacheConfig,
            KVTierConfig,
        ),
        {"num_requests": "3", "workload": "random", "input_len": "8", "output_len": "4"},
    ),
    Command(
        ("bench", "serve"),
        (WorkloadOptions, ServeBenchOptions),
        {"num_prompts": "3", "random_input_len": "5", "base_url": "http://127.0.0.1:9"},
    ),
    Command(
        ("bench", "offline"),
        (OfflineBenchOptions, ModelOptions, CacheConfig, SchedulerConfig),
        {"num_prompts": "2", "input_len": "4", "output_len": "2", "model": "/nowhere"},
    ),
    Command(
        ("calibrate",),
        (CalibrationOptions, ModelOptions, CacheConfig, SchedulerConfig),
        {"model": "/nowhere"},
    ),
)
# What a flag needs beside it to mean anything.
TOGETHER = {
    "acceptance": {"speculative_tokens": "2"},
    "speculative_model": {"speculative_tokens": "2"},
    "trace_path": {"workload": "trace", "dataset_name": "trace"},
}
FLAGS = [
    (command, field.name)
    for command in COMMANDS
    for options in command.options
    for field in fields(options)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder meanwhile: some flags write files under the names that they are given."""
    folder, before = tmp_path_factory.mktemp("hostile"), Path.cwd()
    os.chdir(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    yield folder
    del os.environ["HF_HUB_OFFLINE"]
    os.chdir(before)


def arguments(command: Command, name: str, value: str) -> list[str]:
    names = {field.name for options in command.options for field in fields(options)}
    given = {**command.short, **TOGETHER.get(name, {}), name: value}
    flags = [f"--{n.replace('_', '-')}={v}" for n, v in given.items() if n in names]
    return [*command.words, *flags]


TEXT = st.text(st.characters(exclude_characters="\0"), max_size=30)


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    flag=st.sampled_from(FLAGS),
    value=st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | TEXT,
    path=st.none() | st.integers(0, 100),
)
# The model's file never ends; a name that no file can have; too many; no URL; not one line.
@example((COMMANDS[0], "model"), "/dev/zero", None)
@example((COMMANDS[0], "output_json"), "x/" * 3000, None)
@example((COMMANDS[1], "random_input_len"), "1" + "0" * 22, None)
@example((COMMANDS[1], "base_url"), "\udcff", None)
@example((COMMANDS[1], "model"), "\udcff", None)
@example((COMMANDS[1], "metric_percentiles"), "1" * 5000, None)
@example((COMMANDS[2], "kv_cache_memory"), "1" * 5000, None)
@example((COMMANDS[3], "gpu"), "x" * 100_000, None)
def test_flags(folder: Path, flag: tuple[Command, str], value: str, path: int | None) -> None:
    command, name = flag
    if path is not None:
        paths = hostile_paths(folder / "paths")
        value = paths[path % len(paths)]
    outcome(*arguments(command, name, value))


@pytest.mark.parametrize("number", range(len(hostile_paths(Path("/tmp/none"), make=False))))
@pytest.mark.parametrize("name", ["model", "gpu", "efficiencies", "kernel_tables", "compare"])
def test_no_file_holds_up_a_simulation(folder: Path, name: str, number: int) -> None:
    outcome(*arguments(COMMANDS[0], name, hostile_paths(folder / "paths")[number]))


def test_nothing_listens_at_the_port_that_is_benchmarked() -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 9)) != 0
