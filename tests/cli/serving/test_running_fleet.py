"""Protects: replicas of a fleet are started as the server's keys want them."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.cli.serving.fleet_file import read_fleet
from twostroke.cli.serving.running_fleet import RunningFleet
from twostroke.core.errors import ConfigError
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.supervised import SupervisedSource
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.handshake import StartEngine

FILE = """
[server]
{keys}
[pools.chat]
role = "decode"
{first}
[pools.prompts]
role = "prefill"
served-model-name = "chat"
"""
KEYS = 'api-key = ["a-key-of-16-bytes"]'


class Unstarted(SupervisedSource):
    """Nothing has to run for the test."""

    def _start(self) -> StartedEngine:
        raise ConfigError("it is not started")


@pytest.mark.parametrize(
    ("keys", "first", "policies"),
    [
        (KEYS, "", ["fair", "fair"]),
        (KEYS, 'policy = "fair"', ["fair", "fair"]),
        (KEYS, 'policy = "priority"', ["priority", "fair"]),
        ("", "", [None, None]),
    ],
)
def test_keys_share_the_replicas_of_each_pool(
    tmp_path: Path, keys: str, first: str, policies: list[str | None]
) -> None:
    """Also where another pool's file says how they share its own."""
    path = tmp_path / "fleet.toml"
    path.write_text(FILE.format(keys=keys, first=first))
    started: list[StartEngine] = []

    def make_source(settings: StartEngine, plan: PoolPlan) -> SupervisedSource:
        assert plan.config.scheduler == settings.config.scheduler
        started.append(settings)
        return Unstarted(settings)

    fleet = RunningFleet(path, read_fleet(path), make_source, None, by_ray=False)
    model = fleet.to_load()["chat"]
    model = model.for_keys() if keys else model
    with pytest.raises(ConfigError, match="not started"):
        model.load(model.config)
    assert [each.config.scheduler.policy for each in started] == policies
