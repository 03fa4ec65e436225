"""What a model leaves for its KV cache on each device, and the error where nothing is left."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import InsufficientMemoryError
from twostroke.model_spec.number_formats import weight_format
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Parallel
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.deployment.options import DeploymentOptions

GB = 1e9
# What a device's context and libraries take beside weights and activations: 0.7 to 0.8 GiB of
# context, 0.2 of libraries (logs of vLLM and SGLang on one H100, H200 or B200).
RUNTIME_BYTES = 1.0e9
# Elements per token that a layer holds at once, in hidden sizes; float32 copies of logits while
# sampling.
ACTIVATION_WIDTHS, LOGIT_COPIES = 12, 3
# More requests or tokens than any memory holds: beyond it, bytes would no longer fit a float.
MAX_COUNT = 10**15


def activation_bytes(model: ModelSpec, scheduler: SchedulerConfig) -> tuple[int, int]:
    """Bytes on each device that a step's activations take at most, and its logits."""
    tokens = min(scheduler.max_num_batched_tokens, MAX_COUNT)
    activations = 2 * ACTIVATION_WIDTHS * model.hidden_size * tokens
    return activations, 4 * LOGIT_COPIES * model.vocab_size * min(scheduler.max_num_seqs, tokens)


def device_weight_bytes(model: ModelSpec, format_: str | None, parallel: Parallel) -> int:
    """Bytes of the weights on one device: the one with most experts.

    Experts are spread over all groups of devices that share the layers, all else is whole in each.
    Stages of a pipeline have equal parts.
    """
    total = model.weight_bytes(format_, parallel.tensor)
    if parallel.splits_tensors_only:
        return total
    bits = weight_format(format_ or model.format).bits
    devices, of_experts = parallel.tensor * parallel.data, 0.0
    for layer in model.layers:
        if layer.experts is None:
            continue
        linears, count = layer.experts.linears, layer.experts.count
        before = count * sum(linear.rank_parameters(parallel.tensor) for linear in linears)
        if parallel.expert:
            after = -(-count // devices) * sum(linear.rank_parameters(1) for linear in linears)
        else:
            after = count * sum(linear.rank_parameters(devices) for linear in linears)
        of_experts += layer.count * (after - before) * bits / 8
    return -(-round(total + of_experts) // parallel.pipeline)


def usable_bytes(cache: CacheConfig, hardware: HardwareSheet) -> float:
    """Bytes of a device that serving may use.

    A GPU's memory is all for serving, but what its driver keeps; other programs use a machine's
    memory as well.
    """
    seen = hardware.memory_bytes - hardware.reserved_bytes
    return seen * (1.0 if hardware.is_cpu else cache.gpu_memory_utilization)


def runtime_bytes(hardware: HardwareSheet, model: ModelSpec, parallel: Parallel) -> float:
    """Bytes that context, libraries and collectives keep on each device.

    Groups of devices with requests of their own talk to each other only about experts.
    """
    has_experts = any(layer.experts for layer in model.layers)
    joined = parallel.num_devices if has_experts else parallel.tensor * parallel.pipeline
    return RUNTIME_BYTES + (hardware.buffer_bytes if joined > 1 else 0)


def room_for_kv(
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    hardware: HardwareSheet,
    model: ModelSpec,
    weights: int,
    whole: float,
    states: int,
) -> float:
    """Bytes on one device for the KV cache, which shares the configured memory with the weights.

    Args:
        weights: Bytes of weights on one device.
        whole: Bytes of KV cache of a request of full length on one device.
        states: Bytes of the recurrent states of all requests that may run at once.

    Raises:
        InsufficientMemoryError: Nothing is left, or less than ``--kv-cache-memory``.
    """
    activations, logits = activation_bytes(model, scheduler)
    runtime = runtime_bytes(hardware, model, options.parallel)
    free = usable_bytes(cache, hardware) - weights - runtime - activations - logits - states
    if free <= 0 < free + states:
        # Half of the free memory for states, the rest for the cache.
        fewer = int((free + states) / 2 * scheduler.max_num_seqs / states)
        first = f"--max-num-seqs {fewer}" if fewer else ""
        what = f"weights, activations and the states of {scheduler.max_num_seqs} requests"
        refuse(options, hardware, model, weights, -free, what, first=first)
    if free <= 0:
        refuse(options, hardware, model, weights, -free, "weights and activations")
    if cache.kv_cache_memory is not None:
        if cache.kv_cache_memory > free:
            first = f"--kv-cache-memory {int(free // 2**20)}MiB"
            refuse(
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
    max_useful = min(scheduler.max_num_seqs, MAX_COUNT) * whole
    return min(free * cache.cpu_memory_utilization, max_useful)


def refuse(
    options: DeploymentOptions,
    hardware: HardwareSheet,
    model: ModelSpec,
    weights: int,
    missing: float,
    what: str,
    *,
    first: str = "",
) -> NoReturn:
    """Raise the error for ``what`` that lacks ``missing`` bytes on each device.

    Args:
        first: Flags to try before anything else.
    """
    format_ = None if options.weight_dtype == "auto" else options.weight_dtype
    max_weights = 0.8 * hardware.memory_bytes  # something must be left beside the weights
    more_ranks = [
        ranks
        for ranks in (2, 4, 8, 16)
        if ranks > options.tp
        and device_weight_bytes(model, format_, replace(options.parallel, tensor=ranks))
        < max_weights
    ]
    bits = weight_format(format_ or model.format).bits
    smaller_formats = [name for name in ("fp8", "int4") if weight_format(name).bits < 0.9 * bits]
    flags = [first] if first else []
    flags += [f"--tp {more_ranks[0]}"] if more_ranks else []
    flags += ["--weight-dtype " + " or ".join(smaller_formats)] if smaller_formats else []
    verb = "are" if " and " in what else "is"
    raise InsufficientMemoryError(
        f"{options.model} does not fit on {options.num_devices} x {hardware.name}: {what} {verb}"
        f" {missing / GB:.1f} GB too much for each device's {hardware.memory_bytes / GB:.1f} GB"
        f" ({weights / GB:.1f} GB are weights)",
        hint="try " + ", ".join([*flags, "or a device with more memory"]),
    )
