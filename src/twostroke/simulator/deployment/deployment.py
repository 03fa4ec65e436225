"""From options to a deployment: what fits into the memory, and what a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twostroke.core.byte_sizes import format_decimal_bytes
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Dtypes, Parallel, Speculation
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import SHARED, Efficiencies, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.deployment.memory import GB, MAX_COUNT, refuse, room_for_kv
from twostroke.simulator.deployment.options import MAX_LENGTH, DeploymentOptions

# Blocks of a model that caches nothing by the token: they only count.
_FREE_BLOCKS = 2_000_000
# Blocks that are simulated at all, of a tiny model on a large device: each takes some 50 bytes.
_MAX_BLOCKS = MAX_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica's model on its devices.

    Attributes:
        weight_bytes: Weights on one device.
        kv_bytes: KV cache on one device.
        state_bytes: Recurrent states on one device, of as many requests as may run at once.
        max_model_len: Most tokens of one request.
        notes: Sentences on what differs from what the options suggest.
    """

    hardware: HardwareSheet
    model: ModelSpec
    cost: RooflineCostModel
    info: ExecutorInfo
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    max_model_len: int
    notes: tuple[str, ...] = ()


def deploy(
    options: DeploymentOptions, cache: CacheConfig, scheduler: SchedulerConfig
) -> Deployment:
    """Fit the model onto the devices.

    Raises:
        ConfigError: Unknown hardware or format, or devices that cannot share the model.
        ModelLoadError: Unknown model.
        InsufficientMemoryError: It does not fit, and by how much.
    """
    cost = _cost_model(options)
    hardware, model = cost.hardware, cost.model
    draft = find_model(options.speculative_model) if options.speculative_model else None
    format_ = None if options.weight_dtype == "auto" else options.weight_dtype
    weights = model.weight_bytes(format_, options.tp)
    per_token = model.kv_bytes_per_token(options.kv_cache_dtype, options.tp)
    state = model.state_bytes(options.tp)
    if draft is not None:
        weights += draft.weight_bytes(None, options.tp)
        per_token += draft.kv_bytes_per_token(options.kv_cache_dtype, options.tp)
        state += draft.state_bytes(options.tp)
    states = state * min(scheduler.max_num_seqs, MAX_COUNT)
    kv_room = room_for_kv(options, cache, scheduler, hardware, model, weights, per_token, states)
    wanted = options.max_model_len or min(model.context_length, MAX_LENGTH)
    longest = -(-wanted // cache.block_size)
    # Nothing is kept in the blocks of a model that caches nothing by the token.
    num_blocks = max(longest, min(scheduler.max_num_seqs * longest, _FREE_BLOCKS))
    if per_token:
        num_blocks = min(int(kv_room // (per_token * cache.block_size)), _MAX_BLOCKS)
    capacity = num_blocks * cache.block_size
    if capacity < (options.max_model_len or 2):
        missing = per_token * (options.max_model_len or 2) - kv_room
        fewer = f"--max-model-len {capacity}" if options.max_model_len and capacity > 1 else ""
        refuse(options, hardware, model, weights, missing, "one request's KV cache", first=fewer)
    length = min(wanted, capacity)
    return Deployment(
        hardware=hardware,
        model=model,
        cost=cost,
        info=ExecutorInfo(
            model_id=options.model,
            vocab_size=model.vocab_size,
            max_model_len=length,
            num_blocks=num_blocks,
            block_size=cache.block_size,
            kv_bytes_per_token=round(per_token),
            weight_bytes=weights,
            device="simulated",
        ),
        weight_bytes=weights,
        kv_bytes=round(num_blocks * cache.block_size * per_token),
        state_bytes=states,
        max_model_len=length,
        notes=tuple(_notes(options, cost, capacity if capacity < wanted else None)),
    )


def _cost_model(options: DeploymentOptions) -> RooflineCostModel:
    hardware, model = load_hardware(options.gpu), find_model(options.model)
    speculation = None
    if options.speculative_tokens:
        draft = find_model(options.speculative_model) if options.speculative_model else None
        speculation = Speculation(tokens=options.speculative_tokens, draft=draft)
    efficiencies = find_efficiencies(hardware, options)
    path = options.kernel_tables
    return RooflineCostModel(
        hardware,
        model,
        Parallel(tensor=options.tp),
        Dtypes(weights=options.weight_dtype, kv_cache=options.kv_cache_dtype),
        efficiencies,
        tables=None if path is None else KernelTables.read(path, hardware, efficiencies),
        speculation=speculation,
    )


def _notes(
    options: DeploymentOptions, cost: RooflineCostModel, capacity: int | None
) -> Iterator[str]:
    hardware = cost.hardware
    if capacity is not None:
        yield f"the KV cache holds {capacity} tokens: longer requests are refused"
    if cost.compute_format != cost.weights.compute:
        yield (
            f"{hardware.name} has no {cost.weights.compute} arithmetic: products run in"
            f" {cost.compute_format}"
        )
    if (measured := cost.efficiencies.measured) is not None:
        yield f"step times come from {options.efficiencies}, measured on {measured.describe()}"
        differences = list(
            measured.differences(hardware.name, cost.model.num_parameters, cost.weights.name)
        )
        if differences:
            yield (
                f"{options.efficiencies} was measured on something else:"
                f" {'; '.join(differences)}. Times may be far off"
            )
    if options.tp > hardware.link_domain:
        yield (
            f"links join {hardware.link_domain} x {hardware.name}: {options.tp} talk over the"
            f" network, {cost.link / GB:g} GB/s each way"
        )
    if not hardware.price_per_hour and options.price_per_hour is None:
        yield f"{hardware.name} states no price, so nothing costs anything (--price-per-hour)"


def find_efficiencies(hardware: HardwareSheet, options: DeploymentOptions) -> Efficiencies:
    """The coefficients that ``--efficiencies`` and ``--serving-stack`` name. Raises ConfigError."""
    source = options.efficiencies
    return load_efficiencies(
        SHARED if source == "data-sheet" else hardware.name,
        None if source in ("auto", "data-sheet") else Path(source),
        options.serving_stack,
        link=hardware.link_kind,
    )


def describe(deployment: Deployment, options: DeploymentOptions) -> str:
    """One line: which model, in which formats, on what, and what is left for the KV cache."""
    tokens = deployment.info.num_blocks * deployment.info.block_size
    per_token, states, cost = (
        deployment.info.kv_bytes_per_token,
        deployment.state_bytes,
        deployment.cost,
    )
    kv_format = options.kv_cache_dtype if options.kv_cache_dtype != "auto" else "bf16"
    replicas = f"{options.replicas} x " if options.replicas > 1 else ""
    cache = (
        f"{format_decimal_bytes(deployment.kv_bytes)} of {kv_format} KV cache for {tokens:,} tokens"
        if per_token
        else "no KV cache"
    )
    weights = format_decimal_bytes(deployment.weight_bytes)
    kept = f"{format_decimal_bytes(states)} of recurrent states, " if states else ""
    return (
        f"{options.model} on {replicas}{options.tp} x {deployment.hardware.title}; on each device "
        f"{weights} of {cost.weights.name} weights, {kept}{cache}"
    )
