"""What pools and failures may be, and what is said of others."""

from __future__ import annotations

from math import inf

import pytest

from twostroke.core.errors import ConfigError, TwostrokeError
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.deployment.fleet_options import FleetOptions, ReplicaDeath
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario


def test_pools_and_failures_are_read() -> None:
    options = FleetOptions(
        prefill="gpu=h100, tp=2,replicas=2,max-num-seqs=8",
        decode="replicas=3",
        fail=("replica=4,at=30,for=60", "at=2.5,replica=0"),
    )
    assert options.pools() == {
        "prefill": {"gpu": "h100", "tp": 2, "replicas": 2, "max_num_seqs": 8},
        "decode": {"replicas": 3},
    }
    assert options.failures() == (ReplicaDeath(0, 2.5, inf), ReplicaDeath(4, 30.0, 60.0))
    assert Scenario(fleet=options).num_replicas == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefill": "tp=2"}, "belong together"),
        ({"prefill": "tp=2", "decode": "speed=9"}, "'speed=9' is no setting"),
        ({"prefill": "tp=2,tp=4", "decode": "tp=1"}, "'tp=4' is no setting"),
        ({"prefill": "tp=0", "decode": "tp=1"}, "tp must be a whole number from 1"),
        ({"prefill": "replicas=1e3", "decode": "tp=1"}, "replicas must be a whole number"),
        ({"prefill": "", "decode": "tp=1"}, "is no setting"),
        ({"fail": ("replica=0",)}, "does not say which replica, and when"),
        ({"fail": ("replica=0,at=nan",)}, "'at=nan' is no setting"),
        ({"fail": ("replica=0.5,at=1",)}, "does not say which replica"),
        ({"fail": ("replica=0,at=1,for=0",)}, "away for some time"),
        ({"fail": ("replica=0,at=1", "replica=0,at=2,for=1")}, "cannot die then"),
        ({"transfer_bandwidth": 0.0}, "transfer-bandwidth"),
    ],
)
def test_others_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(TwostrokeError, match=message):
        FleetOptions(**fields)  # type: ignore[arg-type]


def test_what_does_not_go_together_is_refused() -> None:
    split = FleetOptions(prefill="tp=1", decode="tp=1")
    with pytest.raises(ConfigError, match="says nothing of two pools"):
        Scenario(fleet=split, deployment=DeploymentOptions(replicas=2))
    with pytest.raises(ConfigError, match="--autoscale"):
        Scenario(fleet=split, scaling=AutoscalerOptions(autoscale="kv"))
    with pytest.raises(ConfigError, match="a replica from 0 to 0"):
        Scenario(fleet=FleetOptions(fail=("replica=1,at=3",)))


def test_flags_without_pools_are_told() -> None:
    assert FleetOptions(transfer_latency=0.1).without_effect() == ["--transfer-latency"]
    assert not FleetOptions(prefill="tp=1", decode="tp=1", transfer_latency=0.1).without_effect()
