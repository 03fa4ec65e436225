"""Protects: what ``up --kuberay`` prints is YAML that says what the fleet's file says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from twostroke.cli.main import run
from twostroke.cli.serving.fleet_file import read_fleet

FILE = """
[server]
host = "0.0.0.0"
port = 8123

[pools.chat]
model = "pilot"
device = "cpu"
replicas = 2
num-cpus = 3

[pools."Org/Coder:7b"]
model = "org/coder"
tensor-parallel-size = 4
autoscale = "kv"
min-replicas = 0
max-replicas = 5

[pools."org-coder-7b"]
device = "cuda"
num-gpus = 0.5
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    return path


def documents(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[Any]:
    assert run(["up", "--config", str(path), "--kuberay", "registry/image:1", *flags]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_groups_are_pools(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values, cluster, service = documents(path, capsys)
    assert tomllib.loads(values["data"]["fleet.toml"]) == tomllib.loads(FILE)
    spec = cluster["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    groups = {each["groupName"]: each for each in spec["workerGroupSpecs"]}
    assert list(groups) == ["chat", "org-coder-7b", "org-coder-7b-2"]
    sizes = [
        (each["minReplicas"], each["replicas"], each["maxReplicas"]) for each in groups.values()
    ]
    assert sizes == [(2, 2, 2), (0, 1, 5), (1, 1, 1)]
    limits = [
        each["template"]["spec"]["containers"][0]["resources"]["limits"] for each in groups.values()
    ]
    assert limits == [
        {"cpu": "3"},
        {"cpu": "1", "nvidia.com/gpu": 4},
        {"cpu": "1", "nvidia.com/gpu": 1},
    ]
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert (
        "twostroke up --config /etc/twostroke/fleet.toml --ray auto --port 8123" in head["args"][0]
    )
    assert head["ports"][0] == {"containerPort": 8123, "name": "http"}
    assert service["spec"]["ports"][0]["port"] == 8123


def test_the_file_that_it_carries_is_one_for_ray(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, *_ = documents(path, capsys)
    carried = tmp_path / "carried.toml"
    carried.write_text(values["data"]["fleet.toml"])
    expected = read_fleet(path, by_ray=True).pools
    assert read_fleet(carried, by_ray=True).pools == expected


def test_a_server_that_no_service_reaches_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(FILE.replace('host = "0.0.0.0"', ""))
    assert run(["up", "--config", str(path), "--kuberay", "image"]) != 0
    assert "which no Service reaches" in capsys.readouterr().err
