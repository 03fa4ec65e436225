"""From a scenario with pools to what they are, and to a report of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.simulator.deploy_pools import deploy_pools, link_between
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario

PREFILL, DECODE = "gpu=h100,tp=2,replicas=2", "gpu=h200,replicas=3,max_num_seqs=32"


def split() -> Scenario:
    return Scenario(fleet=FleetOptions(prefill=PREFILL, decode=DECODE))


def test_each_pool_has_its_devices_and_settings() -> None:
    scenario, pools = deploy_pools(split())
    assert [pool.role for pool in pools] == ["prefill", "decode"]
    assert [pool.deployment.hardware.name for pool in pools] == ["h100-sxm", "h200"]
    assert [pool.options.tp for pool in pools] == [2, 1]
    assert [pool.options.replicas for pool in pools] == [2, 3]
    assert pools[1].deployment.scheduler.max_num_seqs == 32
    assert scenario.scheduler.max_num_seqs == 32


def test_a_link_is_as_slow_as_its_slower_side() -> None:
    _, pools = deploy_pools(split())
    sender, receiver = (pool.deployment for pool in pools)
    assert sender.info.block_bytes * 2 == receiver.info.block_bytes
    network = min(sender.hardware.network_bandwidth, receiver.hardware.network_bandwidth)
    link = link_between(FleetOptions(), sender, receiver)
    assert link.block_seconds == pytest.approx(receiver.info.block_bytes / network)
    fast = link_between(FleetOptions(transfer_bandwidth=400.0), sender, receiver)
    assert fast.block_seconds == pytest.approx(receiver.info.block_bytes / 400e9)


def test_a_sheet_without_a_network_asks_for_a_rate() -> None:
    _, pools = deploy_pools(split())
    sender, receiver = (pool.deployment for pool in pools)
    alone = replace(sender, hardware=replace(sender.hardware, network_bandwidth=0.0))
    with pytest.raises(ConfigError, match="do not say how they talk"):
        link_between(FleetOptions(), alone, receiver)
    assert link_between(FleetOptions(transfer_bandwidth=1.0), alone, receiver).block_seconds > 0


def test_states_are_not_handed_on() -> None:
    deployment = DeploymentOptions(model="falcon-h1-7b")
    with pytest.raises(ConfigError, match="recurrent layers"):
        deploy_pools(Scenario(deployment=deployment, fleet=split().fleet))


def test_reports_tell_of_both_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    arguments = ["simulate", "--prefill", PREFILL, "--decode", DECODE, "--num-requests", "40"]
    arguments += ["--workload", "random", "--input-len", "600", "--output-len", "20"]
    arguments += ["--fail", "replica=0,at=0.5,for=1", "--rate", "20"]
    arguments += ["--output-json", str(report), "--output-html", str(page)]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "Prompts computed apart" in text
    assert "Replicas that came back" in text
    (fields,) = json.loads(report.read_text("utf-8"))["runs"]
    prefill, decode = fields["pools"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert fields["dollars"] == pytest.approx(prefill["dollars"] + decode["dollars"])
    assert fields["completed"] == 40 <= fields["handed_on"]
    assert fields["setting"]["replicas"] == 5
    assert "prefill: llama-3.1-8b on 2 x 2 x" in page.read_text("utf-8")


def test_each_pool_names_what_its_times_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once where both are of one kind."""
    report = tmp_path / "report.json"
    arguments = ["simulate", "--prefill", "gpu=b200", "--num-requests", "4"]
    arguments += ["--workload", "random", "--input-len", "600", "--output-len", "20"]
    assert run([*arguments, "--decode", "gpu=h100", "--output-json", str(report)]) == 0
    text = capsys.readouterr().out
    (times,) = [line for line in text.splitlines() if line.startswith("Times: ")]
    prefill, decode = times.split("; of decode, ")
    assert prefill.startswith("Times: of prefill, ") and "on NVIDIA B200" in prefill
    assert "on NVIDIA H100" in decode
    # The wider end of B200's prompts, which were not measured, and H100's decode steps.
    assert "0.89 to 1.10 of the estimate, those with prompts 0.79 to 1.56" in text
    (fields,) = json.loads(report.read_text("utf-8"))["runs"]
    assert times == f"Times: {fields['deployment']['times_from']}"
    assert "on NVIDIA B200" in fields["pools"][0]["times_from"]
    assert run([*arguments, "--decode", "gpu=b200"]) == 0
    assert "of prefill" not in capsys.readouterr().out


def test_a_pool_that_does_not_fit_is_named() -> None:
    deployment = DeploymentOptions(model="llama-3.1-70b")
    small, large = "gpu=h100,tp=1", "gpu=h200,tp=4"
    with pytest.raises(InsufficientMemoryError, match=r"^--prefill: llama-3.1-70b does not fit"):
        deploy_pools(
            Scenario(deployment=deployment, fleet=FleetOptions(prefill=small, decode=large))
        )
    with pytest.raises(InsufficientMemoryError, match=r"^--decode: llama-3.1-70b does not fit"):
        deploy_pools(
            Scenario(deployment=deployment, fleet=FleetOptions(prefill=large, decode=small))
        )


@pytest.mark.parametrize("flag", ["--record", "--metrics"])
def test_what_watches_equal_replicas_is_refused(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", "--prefill", PREFILL, "--decode", DECODE, flag, str(tmp_path / "x")]
    assert run(arguments) != 0
    assert "--prefill and --decode give them roles" in capsys.readouterr().err
