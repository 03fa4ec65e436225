"""From options to a deployment: what fits into the memory, and what a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.core.flags.byte_sizes import format_decimal_bytes
from twostroke.core.kv_groups import KVGroups
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.make_kv import capacity_text
from twostroke.kv_cache.state_room import (
    CacheSize,
    StateSize,
    count_state_parts,
    divide_room,
    state_size,
    states_alone,
)
from twostroke.model_spec.layer_groups import groups_beside
from twostroke.model_spec.number_formats import cache_format
from twostroke.model_spec.public_models import find_model, format_by_name
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Drafting, Dtypes
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import SHARED, Efficiencies, load_efficiencies
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.deployment.memory import (
    GB,
    MAX_COUNT,
    device_weight_bytes,
    refuse,
    room_for_kv,
)
from twostroke.simulator.deployment.options import MAX_LENGTH, DeploymentOptions

# Blocks that are simulated at all, of a tiny model on a large device: each takes some 50 bytes.
_MAX_BLOCKS = MAX_LENGTH
# What becomes of requests that a KV cache does not hold.
TOO_LONG = "longer requests are refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica's model on its devices.

    Attributes:
        scheduler: How requests share its steps.
        weight_bytes: Weights on one device.
        kv_bytes: KV cache on one device.
        state_bytes: Recurrent states on one device, of running requests and checkpoints.
        max_model_len: Most tokens of one request.
        notes: Sentences on what differs from what the options suggest.
    """

    hardware: HardwareSheet
    model: ModelSpec
    cost: RooflineCostModel
    info: ExecutorInfo
    scheduler: SchedulerConfig
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    max_model_len: int
    notes: tuple[str, ...] = ()


class _Sizes(NamedTuple):
    """Bytes of the model, and of a draft model beside it.

    Attributes:
        weights: Weights on all devices.
        state: Recurrent state of one request.
        per_token: Keys and values of a token.
        block: A block of one group of layers.
    """

    weights: int
    per_token: float
    state: StateSize
    groups: KVGroups
    block: float


def _sizes(
    options: DeploymentOptions, cache: CacheConfig, scheduler: SchedulerConfig, model: ModelSpec
) -> _Sizes:
    draft, speculation = _drafting(options, model).model, options.resolve_speculation()
    format_ = None if options.weight_dtype == "auto" else options.weight_dtype
    weights = device_weight_bytes(model, format_, options.parallel)
    per_token = model.kv_bytes_per_token(cache.kv_format, options.tp)
    state = model.state_bytes(options.tp)
    members = groups_beside(model, speculation.method if speculation else None)
    groups = KVGroups(members.windows, int(min(scheduler.max_num_batched_tokens, MAX_COUNT)))
    in_slot = members.bytes_per_slot(model, cache.kv_format, options.tp)
    if draft is not None:
        drafts_per_token = draft.kv_bytes_per_token(cache.kv_format, options.tp)
        weights += draft.weight_bytes(None, options.tp)
        per_token += drafts_per_token
        state += draft.state_bytes(options.tp)
        in_slot += drafts_per_token
    stages = options.pipeline_parallel_size
    if stages > 1:
        per_token, state, in_slot = per_token / stages, -(-state // stages), in_slot / stages
    size = state_size(cache, state, round(per_token), speculation)
    return _Sizes(weights, per_token, size, groups, cache.block_size * in_slot)


def deploy(
    options: DeploymentOptions, cache: CacheConfig, scheduler: SchedulerConfig
) -> Deployment:
    """Fit the model onto the devices.

    Raises:
        ConfigError: Unknown hardware or format, or devices that cannot share the model.
        ModelLoadError: Unknown model.
        InsufficientMemoryError: It does not fit, and by how much.
    """
    return deploy_with(make_cost_model(options, cache), options, cache, scheduler)


def deploy_with(
    cost: RooflineCostModel,
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> Deployment:
    """Do what ``deploy`` does, by a cost model of the same options that was made before."""
    hardware, model = cost.hardware, cost.model
    sizes = _sizes(options, cache, scheduler, model)
    weights, per_token, state, groups, block_bytes = sizes
    states = state.num_bytes * min(scheduler.max_num_seqs, MAX_COUNT)

    def bytes_of(tokens: int) -> float:
        blocks = groups.most_blocks(tokens, cache.block_size)
        return blocks * (block_bytes + state.per_block)

    whole = bytes_of(options.max_model_len or model.context_length)
    kv_room = room_for_kv(options, cache, scheduler, hardware, model, weights, whole, states)
    wanted = options.max_model_len or min(model.context_length, MAX_LENGTH)
    longest = -(-wanted // cache.block_size)
    num_blocks, num_slots = _cache_size(cache, scheduler, sizes, kv_room, longest)
    longest_cached = groups.longest_request(num_blocks, cache.block_size)
    capacity = wanted if longest_cached is None else longest_cached
    if capacity < (options.max_model_len or 2):
        least = options.max_model_len or 2
        missing = (bytes_of(least) if groups.has_windows else per_token * least) - kv_room
        fewer = f"--max-model-len {capacity}" if options.max_model_len and capacity > 1 else ""
        refuse(options, hardware, model, weights, missing, "one request's KV cache", first=fewer)
    length, groups_apart = min(wanted, capacity), options.data_parallel_size
    return Deployment(
        hardware=hardware,
        model=model,
        cost=cost,
        info=ExecutorInfo(
            model_id=options.model,
            vocab_size=model.vocab_size,
            max_model_len=length,
            num_blocks=min(num_blocks * groups_apart, max(num_blocks, _MAX_BLOCKS)),
            block_size=cache.block_size,
            kv_bytes_per_token=round(per_token),
            kv_groups=groups,
            kv_block_bytes=round(block_bytes),
            num_state_slots=num_slots * groups_apart,
            state_spacing=state.spacing or 1,
            num_state_parts=count_state_parts(state.num_bytes, block_bytes),
            kv_cache_dtype=cache_format(cache.kv_format).name,
            weight_bytes=weights,
            device="simulated",
        ),
        scheduler=_of_groups(scheduler, groups_apart),
        weight_bytes=weights,
        kv_bytes=round(num_blocks * block_bytes),
        state_bytes=num_slots * state.num_bytes,
        max_model_len=length,
        notes=tuple(_notes(options, cost, capacity if capacity < wanted else None)),
    )


def _of_groups(scheduler: SchedulerConfig, groups: int) -> SchedulerConfig:
    """One scheduler in place of those of all groups, which have their own in a live server.

    A request is in one group: its chunks stay as small.
    """
    if groups == 1:
        return scheduler
    chunk = min(scheduler.max_prefill_chunk or MAX_COUNT, scheduler.max_num_batched_tokens)
    return replace(
        scheduler,
        max_num_seqs=groups * scheduler.max_num_seqs,
        max_num_batched_tokens=groups * scheduler.max_num_batched_tokens,
        max_prefill_chunk=chunk,
    )


def _cache_size(
    cache: CacheConfig, scheduler: SchedulerConfig, sizes: _Sizes, kv_room: float, longest: int
) -> CacheSize:
    """Blocks and slots of states, as the live engine divides the same memory.

    Args:
        kv_room: What states of as many requests as may run leave, or ``--kv-cache-memory``.
        longest: Blocks of a request of full length.
    """
    state, seqs = sizes.state, min(scheduler.max_num_seqs, MAX_COUNT)
    is_whole = cache.kv_cache_memory is not None
    budget = kv_room if is_whole else kv_room + seqs * state.num_bytes
    if not sizes.per_token:
        num_blocks, num_slots = states_alone(budget, state, seqs, longest)
    else:
        num_blocks, num_slots = divide_room(budget, sizes.block, state, seqs)
        num_blocks = min(num_blocks, _MAX_BLOCKS)
    return CacheSize(num_blocks, min(num_slots, _MAX_BLOCKS))


def make_cost_model(options: DeploymentOptions, cache: CacheConfig) -> RooflineCostModel:
    """What a step takes on these devices. Raises ConfigError or ModelLoadError."""
    hardware = load_hardware(options.gpu)
    model = find_model(options.model).with_states_in(cache.mamba_ssm_cache_dtype)
    _check_split(options, model)
    efficiencies = find_efficiencies(hardware, options)
    path = options.kernel_tables
    return RooflineCostModel(
        hardware,
        model,
        options.parallel,
        Dtypes(weights=options.weight_dtype, kv_cache=cache.kv_format),
        efficiencies,
        tables=None if path is None else KernelTables.read(path, hardware, efficiencies),
        drafting=_drafting(options, model),
    )


def _check_split(options: DeploymentOptions, model: ModelSpec) -> None:
    """Raise ConfigError for ways to split that the model does not allow."""
    has_experts = any(layer.experts for layer in model.layers)
    if options.enable_expert_parallel and not has_experts:
        raise ConfigError(f"{options.model} has no experts", hint="no --enable-expert-parallel")
    devices = options.parallel.expert_devices
    for layer in model.layers if options.enable_expert_parallel else ():
        if layer.experts and layer.experts.count < devices:
            raise ConfigError(
                f"{layer.experts.count} experts cannot be dealt out over {devices} devices",
                hint="no --enable-expert-parallel, or fewer devices for each replica",
            )
    if options.pipeline_parallel_size > model.num_layers:
        raise ConfigError(
            f"{options.model} has {model.num_layers} layers for"
            f" --pipeline-parallel-size {options.pipeline_parallel_size}",
            hint="give no more groups than layers",
        )


def _drafting(options: DeploymentOptions, model: ModelSpec) -> Drafting:
    """What makes drafts: a smaller model, some of the target's layers, or nothing that costs."""
    speculation = options.resolve_speculation()
    if speculation is None:
        return Drafting()
    if speculation.method == "medusa":  # one layer and a matrix over the vocabulary for each head
        head = model.hidden_size * (model.hidden_size + model.vocab_size)
        return Drafting(share=min(1.0, head / model.num_parameters))
    if speculation.method == "mtp":  # a layer like one of its own, what joins its inputs, the head
        layer = [each for each in model.layers if each.attention is not None][-1]
        own = layer.active_parameters + 2 * model.hidden_size**2 + model.head.parameters
        return Drafting(share=min(1.0, own / model.active_parameters), reads_prompts=True)
    if speculation.model is not None:
        return Drafting(model=find_model(speculation.model))
    if speculation.method != "early-exit":
        return Drafting()
    layers = speculation.exit_layer or max(1, model.num_layers // 4)
    return Drafting(share=min(1.0, layers / model.num_layers))


def _notes(
    options: DeploymentOptions, cost: RooflineCostModel, capacity: int | None
) -> Iterator[str]:
    hardware = cost.hardware
    if capacity is not None:
        yield f"the KV cache holds {capacity} tokens: {TOO_LONG}"
    if cost.compute_format != cost.weights.compute:
        yield (
            f"{hardware.name} has no {cost.weights.compute} arithmetic: products run in"
            f" {cost.compute_format}"
        )
    if options.weight_dtype == "auto" and (by_name := format_by_name(options.model)) is not None:
        yield (
            f"{by_name} weights by the model's name: its config.json would say which layers are not"
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
    elif options.num_devices > hardware.link_domain:
        yield (
            f"links join {hardware.link_domain} x {hardware.name}: groups of the"
            f" {options.num_devices} talk over the network"
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


def _describe_split(options: DeploymentOptions) -> str:
    """The ways in which a model is split, if not by tensors alone."""
    if options.parallel.splits_tensors_only:
        return ""
    ways = {
        "tensor": options.tp,
        "data": options.data_parallel_size,
        "pipeline": options.pipeline_parallel_size,
    }
    told = [f"{name} parallel {size}" for name, size in ways.items() if size > 1]
    return f" ({', '.join([*told, *['expert parallel'] * options.enable_expert_parallel])})"


def describe(deployment: Deployment, options: DeploymentOptions) -> str:
    """One line: which model, in which formats, on what, and what is left for the KV cache."""
    per_token, states, cost = (
        deployment.info.kv_bytes_per_token,
        deployment.state_bytes,
        deployment.cost,
    )
    replicas = f"{options.replicas} x " if options.replicas > 1 else ""
    groups = options.data_parallel_size
    in_groups = f" in all {groups} groups" if groups > 1 else ""
    cache = (
        f"{format_decimal_bytes(deployment.kv_bytes)} of {deployment.info.kv_cache_dtype} KV cache"
        f" for {capacity_text(deployment.info)}{in_groups}"
        if per_token
        else "no KV cache"
    )
    weights = format_decimal_bytes(deployment.weight_bytes)
    kept = f"{format_decimal_bytes(states)} of recurrent states, " if states else ""
    return (
        f"{options.model} on {replicas}{options.num_devices} x {deployment.hardware.title}"
        f"{_describe_split(options)}; on each device "
        f"{weights} of {cost.weights.name} weights, {kept}{cache}"
    )
