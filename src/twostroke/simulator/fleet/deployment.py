"""From options to replicas: what fits into the memory, what a step takes, and the engines around
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from twostroke.core.byte_sizes import format_decimal_bytes
from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.engine.executor import ExecutorInfo
from twostroke.model_spec.model_sheet import ModelSheet
from twostroke.model_spec.number_formats import weight_format
from twostroke.model_spec.public_models import find_model
from twostroke.observability.recorder import Recorder
from twostroke.simulator.cost.cost_model import Dtypes, Parallel, RooflineCostModel, Speculation
from twostroke.simulator.cost.decode_curve import Bound
from twostroke.simulator.cost.efficiencies import SHARED, Efficiencies, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.cost.step_shape import SETTLING
from twostroke.simulator.cost.tables import KernelTables
from twostroke.simulator.fleet.acceptance import Acceptance
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.options import LONGEST, DeploymentOptions
from twostroke.simulator.fleet.replica import Replica

GB = 1e9
# What a device's context, libraries and communication buffers take beside weights and activations.
RUNTIME_BYTES = 1.0e9
# Elements per token that a layer holds at once, in hidden sizes; float32 copies of logits while
# sampling.
ACTIVATION_WIDTHS, LOGIT_COPIES = 12, 3
# More requests or tokens than any memory has room for: beyond it, bytes would no longer fit a
# float.
_MANY = 10**15
# Blocks of a model that caches nothing by the token: they only count. And most that are simulated
# at all, of a tiny model on a large device: each takes some 50 bytes here.
_FREE_BLOCKS, _MOST_BLOCKS = 2_000_000, LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica's model on its devices.

    Attributes:
        weight_bytes: On one device; ``kv_bytes`` likewise: what the KV cache takes there;
            ``state_bytes``: what the states of as many requests take as may run at once.
        max_model_len: Most tokens of one request.
        notes: What is not quite as somebody may expect.
    """

    hardware: HardwareSheet
    model: ModelSheet
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
    hardware, model = load_hardware(options.gpu), find_model(options.model)
    draft = find_model(options.speculative_model) if options.speculative_model else None
    speculation = (
        Speculation(tokens=options.speculative_tokens, draft=draft)
        if options.speculative_tokens
        else None
    )
    efficiencies = find_efficiencies(hardware, options)
    path = options.kernel_tables
    tables = None if path is None else KernelTables.read(path, hardware, efficiencies)
    dtypes = Dtypes(weights=options.weight_dtype, kv_cache=options.kv_cache_dtype)
    parallel = Parallel(tensor=options.tp)
    cost = RooflineCostModel(
        hardware, model, parallel, dtypes, efficiencies, tables=tables, speculation=speculation
    )
    format_ = None if options.weight_dtype == "auto" else options.weight_dtype
    weights = model.weight_bytes(format_, options.tp)
    per_token, state = (
        model.kv_bytes_per_token(options.kv_cache_dtype, options.tp),
        model.state_bytes(options.tp),
    )
    if draft is not None:
        weights += draft.weight_bytes(None, options.tp)
        per_token += draft.kv_bytes_per_token(options.kv_cache_dtype, options.tp)
        state += draft.state_bytes(options.tp)
    states = state * min(scheduler.max_num_seqs, _MANY)
    room = _room_for_kv(options, cache, scheduler, hardware, model, weights, per_token, states)
    wanted = options.max_model_len or min(model.max_length, LONGEST)
    longest = -(-wanted // cache.block_size)
    num_blocks = max(
        longest, min(scheduler.max_num_seqs * longest, _FREE_BLOCKS)
    )  # nothing is kept in them
    if per_token:
        num_blocks = min(int(room // (per_token * cache.block_size)), _MOST_BLOCKS)
    capacity = num_blocks * cache.block_size
    if capacity < (options.max_model_len or 2):
        short = per_token * (options.max_model_len or 2) - room
        fewer = f"--max-model-len {capacity}" if options.max_model_len and capacity > 1 else ""
        _refuse(options, hardware, model, weights, short, "one request's KV cache", first=fewer)
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
        others = list(
            measured.differences(hardware.name, cost.model.num_parameters, cost.weights.name)
        )
        if others:
            yield (
                f"{options.efficiencies} was measured on something else: {'; '.join(others)}. Times"
                " may be far off"
            )
    if options.tp > hardware.link_domain:
        yield (
            f"links join {hardware.link_domain} x {hardware.name}: {options.tp} talk over the"
            f" network, {cost.link / GB:g} GB/s each way"
        )
    if not hardware.price_per_hour and options.price_per_hour is None:
        yield f"{hardware.name} states no price, so nothing costs anything (--price-per-hour)"


def find_efficiencies(hardware: HardwareSheet, options: DeploymentOptions) -> Efficiencies:
    """The coefficients that ``--efficiencies`` and ``--serving-stack`` ask for. Raises
    ConfigError.
    """
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
    cached = options.kv_cache_dtype if options.kv_cache_dtype != "auto" else "bf16"
    replicas = f"{options.replicas} x " if options.replicas > 1 else ""
    cache = (
        f"{format_decimal_bytes(deployment.kv_bytes)} of {cached} KV cache for {tokens:,} tokens"
        if per_token
        else "no KV cache"
    )
    kept = f"{format_decimal_bytes(states)} of recurrent states, " if states else ""
    return (
        f"{options.model} on {replicas}{options.tp} x {deployment.hardware.title}; on each device "
        f"{format_decimal_bytes(deployment.weight_bytes)} of {cost.weights.name} weights,"
        f" {kept}{cache}"
    )


def make_replicas(
    deployment: Deployment,
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    bound: Bound = "seconds",
    jump: bool = True,
    seed: int = 0,
    recorders: Sequence[Recorder] = (),
) -> list[Replica]:
    """Fresh engines at time 0. Each has a recorder of its own, if there are any: their steps have
    the same numbers.
    """
    acceptance = None
    if options.speculative_tokens:
        acceptance = Acceptance(options.speculative_tokens, options.acceptance, seed)
    replicas, host = [], deployment.cost.efficiencies.host
    for number in range(options.replicas):
        executor = SimulatedExecutor(
            deployment.info,
            deployment.cost,
            VirtualClock(),
            bound=bound,
            acceptance=acceptance,
            settling=SETTLING if host.settle else 0,
            waking=host.wake > 0,
        )
        replicas.append(
            Replica(
                executor,
                scheduler,
                enable_prefix_caching=cache.enable_prefix_caching,
                jump=jump,
                recorder=recorders[number] if recorders else None,
            )
        )
    return replicas


def _room_for_kv(
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareSheet,
    model: ModelSheet,
    weights: int,
    per_token: float,
    states: int,
) -> float:
    """Bytes on one device for the KV cache; it and the weights share the configured memory, as in
    the engine.
    """
    tokens = min(scheduler.max_num_batched_tokens, _MANY)
    activations = 2 * ACTIVATION_WIDTHS * model.hidden_size * tokens
    logits = 4 * LOGIT_COPIES * model.vocab_size * min(scheduler.max_num_seqs, tokens)
    # A GPU is there to be filled; a machine's memory belongs to everyone on it
    # (kv_tensors.plan_num_blocks).
    usable = hardware.memory_bytes * (1.0 if hardware.is_cpu else cache.gpu_memory_utilization)
    free = usable - weights - RUNTIME_BYTES - activations - logits - states
    if free <= 0 < free + states:
        # Half of what is there for states, the rest for the cache.
        fewer = int((free + states) / 2 * scheduler.max_num_seqs / states)
        first = f"--max-num-seqs {fewer}" if fewer else ""
        what = f"weights, activations and the states of {scheduler.max_num_seqs} requests"
        _refuse(options, hardware, model, weights, -free, what, first=first)
    if free <= 0:
        _refuse(options, hardware, model, weights, -free, "weights and activations")
    if cache.kv_cache_memory is not None:
        if cache.kv_cache_memory > free:
            first = f"--kv-cache-memory {int(free // 2**20)}MiB"
            _refuse(
                options,
                hardware,
                model,
                weights,
                cache.kv_cache_memory - free,
                "--kv-cache-memory",
                first=first,
            )
        return float(cache.kv_cache_memory)
    if not hardware.is_cpu:
        return free
    length = options.max_model_len or model.max_length
    useful = (
        -(-length // cache.block_size)
        * cache.block_size
        * min(scheduler.max_num_seqs, _MANY)
        * per_token
    )
    return min(free * cache.cpu_memory_utilization, useful)


def _refuse(
    options: DeploymentOptions,
    hardware: HardwareSheet,
    model: ModelSheet,
    weights: int,
    short: float,
    what: str,
    *,
    first: str = "",
) -> NoReturn:
    """Raises InsufficientMemoryError; ``first`` is what to try before anything else."""
    format_ = None if options.weight_dtype == "auto" else options.weight_dtype
    room = 0.8 * hardware.memory_bytes  # something must be left beside the weights
    more = [
        ranks
        for ranks in (2, 4, 8, 16)
        if ranks > options.tp and model.weight_bytes(format_, ranks) < room
    ]
    bits = weight_format(format_ or model.format).bits
    smaller = [name for name in ("fp8", "int4") if weight_format(name).bits < bits]
    ways = [first] if first else []
    ways += [f"--tp {more[0]}"] if more else []
    ways += ["--weight-dtype " + " or ".join(smaller)] if smaller else []
    raise InsufficientMemoryError(
        f"{options.model} does not fit on {options.tp} x {hardware.name}: {what} are"
        f" {short / GB:.1f} GB too much for each device's {hardware.memory_bytes / GB:.1f} GB"
        f" ({weights / GB:.1f} GB are weights)",
        hint="try " + ", ".join([*ways, "or a device with more memory"]),
    )
