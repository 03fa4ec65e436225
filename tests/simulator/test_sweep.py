"""Sweeps: axes, combinations, and scenarios that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.scenarios import scenario
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.sweep import keep_fitting, parse_axis, sweep


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("rate=1:16", "rate", ["1", "2", "4", "8", "16"]),
        ("rate=3:10", "rate", ["3", "6", "10"]),
        ("rate=1:2:3", "rate", ["1", "1.5", "2"]),
        ("--max-num-seqs=8,16", "max_num_seqs", ["8", "16"]),
        ("gpu=h100,l40s", "gpu", ["h100", "l40s"]),
    ],
)
def test_axes(text: str, name: str, values: list[str]) -> None:
    assert parse_axis(text) == (name, values)


@pytest.mark.parametrize(
    "text",
    ["rate", "rate=", "rate=4:1", "rate=a:b", "rate=1:2:1", "=1", "rate=1:inf", "rate=1:9:1e9"],
)
def test_broken_axes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep"):
        parse_axis(text)


def test_a_sweep_is_all_combinations_in_order() -> None:
    scenarios = sweep(scenario(), ("gpu=h100,l40s", "enable_prefix_caching=true,false"))
    assert [varied.label for varied in scenarios] == [
        "gpu=h100, enable_prefix_caching=true",
        "gpu=h100, enable_prefix_caching=false",
        "gpu=l40s, enable_prefix_caching=true",
        "gpu=l40s, enable_prefix_caching=false",
    ]
    assert (scenarios[3].deployment.gpu, scenarios[3].cache.enable_prefix_caching) == (
        "l40s",
        False,
    )
    for axes in (("rate=1", "rate=2"), ("seed=1:1000:1000", "tp=1:1000:1000")):
        with pytest.raises(ConfigError, match=r"twice|1,000,000 runs"):
            sweep(scenario(), axes)
    assert sweep(scenario(), ("kv_cache_memory=1GiB,none",))[0].cache.kv_cache_memory == 2**30


@pytest.mark.parametrize(
    "text",
    [
        "nothing=1",
        "tp=x",
        "tp=inf",
        "tp=nan",
        "replicas=1e9",
        "enable_prefix_caching=2",
        "policy=best",
        "tp=0",
    ],
)
def test_sweeps_over_what_is_not_there_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        sweep(scenario(), (text,))


def test_a_sweep_leaves_out_what_does_not_fit_and_refuses_what_does_not_exist() -> None:
    asked = replace(scenario(), deployment=DeploymentOptions(model="llama-3.1-70b"))
    fit, left_out = keep_fitting(sweep(asked, ("tp=1,2,4",)))
    assert [varied.label for varied in fit] == ["tp=2", "tp=4"]
    assert (
        len(left_out) == 1
        and left_out[0].startswith("tp=1 is left out")
        and "GB too much" in left_out[0]
    )
    with pytest.raises(InsufficientMemoryError):
        keep_fitting(sweep(asked, ("gpu=l4,a10",)))
    with pytest.raises(ConfigError, match="unknown device"):
        keep_fitting(sweep(asked, ("gpu=l4,h10o",)))


def test_flags_of_one_run_are_changed_together() -> None:
    """A pool of 16 is allowed only where as many are allowed."""
    own = replace(Scenario(), scaling=AutoscalerOptions(autoscale="kv"))
    (run,) = sweep(own, ("replicas=16", "max_replicas=16"))
    assert run.deployment.replicas == run.scaling.max_replicas == 16
    assert run.label == "replicas=16, max_replicas=16"
