"""From a scenario to its pools: one of replicas that do everything, or two with roles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.deployment.fleet_options import FleetOptions, Role
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.peers import Link
from twostroke.simulator.scenario import Scenario, deploy_scenario

GIGA = 1e9
OF_SCHEDULER = ("max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """Equal replicas with a role.

    Attributes:
        scenario: What these replicas would be if they were all.
    """

    role: Role
    scenario: Scenario
    deployment: Deployment

    @property
    def options(self) -> DeploymentOptions:
        return self.scenario.deployment


def deploy_pools(scenario: Scenario) -> tuple[Scenario, tuple[DeployedPool, ...]]:
    """The scenario with every default filled in, and its pools; the last one writes answers.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: See ``deploy``; or states would have
            to move.
    """
    if not scenario.fleet.is_split:
        scenario, deployment = deploy_scenario(scenario)
        return scenario, (DeployedPool("both", scenario, deployment),)
    pools = tuple(
        _deploy_pool(role, _pool_scenario(scenario, values))
        for role, values in scenario.fleet.pools().items()
    )
    if pools[-1].deployment.info.num_state_parts:
        raise ConfigError(
            f"{scenario.deployment.model} has recurrent layers, whose states are not handed on",
            hint="leave out --prefill and --decode",
        )
    return replace(scenario, scheduler=pools[-1].scenario.scheduler), pools


def _deploy_pool(role: Role, scenario: Scenario) -> DeployedPool:
    try:
        return DeployedPool(role, *deploy_scenario(scenario))
    except InsufficientMemoryError as error:
        hint = f"{error.hint}; in --{role} such as tp=2, gpu=h200"
        raise InsufficientMemoryError(f"--{role}: {error.message}", hint=hint) from error


def _pool_scenario(scenario: Scenario, values: dict[str, Any]) -> Scenario:
    of_scheduler = {name: value for name, value in values.items() if name in OF_SCHEDULER}
    of_deployment = {name: value for name, value in values.items() if name not in OF_SCHEDULER}
    return replace(
        scenario,
        deployment=replace(scenario.deployment, **of_deployment),
        scheduler=replace(scenario.scheduler, **of_scheduler),
        fleet=FleetOptions(),
    )


def link_between(options: FleetOptions, sender: Deployment, receiver: Deployment) -> Link:
    """What moving a block from one replica to another takes.

    Devices move their parts side by side: what the side with more bytes on each takes counts. A
    latent cache is whole on each device.

    Raises:
        ConfigError: Neither the options nor the sheets say how fast.
    """
    bandwidth = GIGA * (options.transfer_bandwidth or 0.0)
    if not bandwidth:
        sheets = (sender.hardware, receiver.hardware)
        bandwidth = min(
            sheet.link_bandwidth if sheet.is_cpu else sheet.network_bandwidth for sheet in sheets
        )
    if not bandwidth:
        raise ConfigError(
            f"{sender.hardware.name} and {receiver.hardware.name} do not say how they talk",
            hint="give --transfer-bandwidth, or network_bandwidth under [link] in the sheet",
        )
    size = max(sender.info.block_bytes, receiver.info.block_bytes)
    return Link(size / bandwidth, options.transfer_latency)
