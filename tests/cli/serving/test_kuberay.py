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
    assert sizes == [(2, 2, 3), (0, 1, 6), (1, 1, 2)]  # one more while they are replaced
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


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace("\n", "\n  ").lstrip("\n"),  # begins with spaces, as no other line must
        "  # a fleet\n" + FILE,
        FILE.replace("\n", "\r\n"),
        FILE + "# next line: \x85 [pools.x] \u2028 replicas = 0\n",
        FILE + '\tdtype = """\nfloat32"""  \n',
    ],
)
def test_a_file_is_carried_however_it_is_written(
    path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path.write_bytes(text.encode())
    values, *_ = documents(path, capsys)
    carried = values["data"]["fleet.toml"]
    assert carried.rstrip() == text.replace("\r\n", "\n").rstrip()
    assert tomllib.loads(carried) == tomllib.loads(text)


def test_a_server_that_no_service_reaches_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("", 'host = "127.0.0.2"'):
        path.write_text(FILE.replace('host = "0.0.0.0"', line))
        assert run(["up", "--config", str(path), "--kuberay", "image"]) != 0
        assert "which no Service reaches" in capsys.readouterr().err
    path.write_text(FILE.replace("8123", "0"))
    assert run(["up", "--config", str(path), "--kuberay", "image"]) != 0
    assert "which no Service finds" in capsys.readouterr().err
