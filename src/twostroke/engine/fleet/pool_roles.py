"""Which pools serve one model together, and what they must agree in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import pairwise

from twostroke.core.errors import ConfigError
from twostroke.engine.fleet.pool_plan import PoolPlan

Difference = tuple[str, object, object]
# What may differ between replicas that give the same answers and the same blocks.
_OWN = {"device", "enforce_eager", "kv_cache_memory", "memory_share"}
_OWN |= {"gpu_memory_utilization", "cpu_memory_utilization"}


def check_roles(model: str, plans: Mapping[str, PoolPlan]) -> None:
    """Refuse pools of one model that could not serve it together.

    Args:
        model: What requests call it.
        plans: Its pools, by their names.

    Raises:
        ConfigError: It names the pools, and the key that is wrong.
    """
    roles = {plan.options.role for plan in plans.values()}
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            name = next(name for name, plan in plans.items() if plan.options.role == role)
            raise ConfigError(
                f"pool {name} has role {role}, and no pool of {model} has role {other}",
                hint=f'give another pool role = "{other}" and served-model-name = "{model}",'
                " or leave the role out",
            )
    apart = {name: plan for name, plan in plans.items() if plan.options.role != "both"}
    for name, plan in apart.items():
        _check_apart(name, plan)
    _check_alike(model, apart, _other_transfers)
    _check_alike(model, plans, _differences)


def _check_alike(
    model: str,
    plans: Mapping[str, PoolPlan],
    differences: Callable[[PoolPlan, PoolPlan], list[Difference]],
) -> None:
    """Refuse pools that differ in what all of them must have."""
    for (name, plan), (other_name, other_plan) in pairwise(plans.items()):
        for flag, ours, theirs in differences(plan, other_plan):
            raise ConfigError(
                f"pools {name} and {other_name} serve one model, {model}, and have another"
                f" {flag}: {ours} and {theirs}",
                hint=f"give both the same {flag}, or another --served-model-name",
            )


def _check_apart(name: str, plan: PoolPlan) -> None:
    """Refuse a role beside what hands no blocks on."""
    role, config = plan.options.role, plan.config
    if not config.cache.enable_prefix_caching:
        raise ConfigError(
            f"pool {name} has role {role}, which needs the prefix cache: blocks are found by their"
            " content",
            hint="leave out --no-enable-prefix-caching, or the role",
        )
    if config.model.tensor_parallel_size > 1:
        raise ConfigError(
            f"pool {name} has role {role}, which does not work with --tensor-parallel-size",
            hint="leave one of them out",
        )


def _other_transfers(plan: PoolPlan, other: PoolPlan) -> list[Difference]:
    """How blocks cross, where two plans differ in that."""
    ways = plan.options.kv_transfer, other.options.kv_transfer
    return [("--kv-transfer", *ways)] if ways[0] != ways[1] else []


def _differences(plan: PoolPlan, other: PoolPlan) -> list[Difference]:
    """Flags in which two plans differ that must not, with their values."""
    differing: list[Difference] = []
    for section in ("model", "cache", "chat", "adapters"):
        ours, theirs = getattr(plan.config, section), getattr(other.config, section)
        for each in fields(ours):
            values = getattr(ours, each.name), getattr(theirs, each.name)
            if each.name not in _OWN and values[0] != values[1]:
                differing.append((f"--{each.name.replace('_', '-')}", *values))
    return differing
