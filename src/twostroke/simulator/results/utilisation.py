"""How well the hardware was used: FLOPs and bytes of all steps against the data sheet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twostroke.model_spec.number_formats import cache_format
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.results.columns import Columns, Integers, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares in [0, 1].

    Attributes:
        busy: The part of the replicas' time in which a step ran.
        mfu: Model FLOPs over what the devices could compute in their busy time, at the dense rate
            of the weights' format. Tokens computed again after a preemption and rejected drafts
            count too: the device computed them.
        mbu: Bytes that had to be moved over what the devices could move in their busy time: weights
            once a step (the expected number of experts), the cache that decoding reads, new cache
            entries, and recurrent states.
        kv_mean: Share of the blocks in use, mean over the busy time.
        kv_peak: The largest share of the blocks in use.
        batch_mean: Requests per step, mean over the busy time.
        binding: Shares of the busy time, by what most of the step waits for.
    """

    busy: float
    mfu: float
    mbu: float
    kv_mean: float
    kv_peak: float
    batch_mean: float
    binding: dict[str, float]


def utilisation(
    columns: Columns, deployment: Deployment, replica_seconds: float, kv_dtype: str
) -> Utilisation:
    """The utilisation of a run for which replicas were there ``replica_seconds`` in all."""
    seconds = columns.duration
    busy = float(seconds.sum())
    if not busy:
        return Utilisation(busy=0, mfu=0, mbu=0, kv_mean=0, kv_peak=0, batch_mean=0, binding={})
    cost, hardware = deployment.cost, deployment.hardware
    devices = cost.parallel.num_devices
    used = 1 - columns.free_blocks / deployment.info.num_blocks
    if not deployment.kv_bytes:  # the blocks of a model that caches nothing by the token only count
        used = np.zeros(len(used))
    batch = columns.decode_requests + (columns.prefill_tokens > 0)
    return Utilisation(
        busy=busy / replica_seconds,
        mfu=float(step_flops(columns, deployment).sum())
        / (busy * devices * hardware.dense_flops[cost.compute_format]),
        mbu=float(step_bytes(columns, deployment, kv_dtype).sum())
        / (busy * devices * hardware.memory_bandwidth),
        kv_mean=float((used * seconds).sum()) / busy,
        kv_peak=float(used.max()),
        batch_mean=float((batch * seconds).sum()) / busy,
        binding={
            name: float(seconds[columns.binding == code].sum()) / busy
            for code, name in enumerate(columns.bindings)
        },
    )


def step_flops(columns: Columns, deployment: Deployment) -> Numbers:
    """FLOPs of each step, over all devices of its replica."""
    model = deployment.model
    decoded = columns.decode_requests + columns.drafts
    queries = decoded / np.maximum(columns.decode_requests, 1)
    total: Numbers = (columns.prefill_tokens + decoded) * np.float64(model.linear_flops())
    total += columns.new_tokens * float(model.head_flops())
    for layer in model.layers:
        attention = layer.attention
        if attention is None:
            continue
        pairs, context = columns.prefill_context, columns.decode_context
        if attention.window is not None:
            pairs = np.minimum(pairs, columns.prefill_tokens * attention.window)
            context = np.minimum(context, columns.decode_requests * attention.window)
        total += layer.count * attention.prefill_flops() * pairs.astype(np.float64)
        total += layer.count * attention.decode_flops() * queries * context.astype(np.float64)
    return total


def step_bytes(columns: Columns, deployment: Deployment, kv_dtype: str) -> Numbers:
    """Bytes that each step had to move, over all devices of its replica."""
    model, ranks = deployment.model, deployment.cost.ranks
    per_token = model.kv_bytes_per_token(kv_dtype, ranks) * ranks
    tokens = columns.prefill_tokens + columns.decode_requests + columns.drafts
    read = np.zeros(len(tokens))
    for layer in model.layers:
        if layer.attention is not None:
            context = columns.decode_context
            if layer.attention.window is not None:
                context = np.minimum(context, columns.decode_requests * layer.attention.window)
            token_bits = layer.attention.cached_bits(cache_format(kv_dtype), ranks)
            read += context * (layer.count * token_bits * ranks / 8)
    requests = columns.decode_requests + (columns.prefill_tokens > 0)
    read += 2.0 * requests * model.state_bytes(ranks) * ranks
    weights = _weight_bytes(tokens.astype(np.float64), requests, deployment)
    return weights + read + tokens * per_token


def _weight_bytes(tokens: Numbers, requests: Integers, deployment: Deployment) -> Numbers:
    """Weights that a step reads: all but the embedding table and experts without a token.

    Each batch of a pipeline reads them; of groups with requests of their own each that has some
    reads all but the experts, which they share.
    """
    parallel = deployment.cost.parallel
    batches = np.clip(tokens, 1, parallel.pipeline)
    groups = np.clip(requests / batches, 1, parallel.data)
    of_experts, unread = _expert_bytes(tokens / batches, deployment)
    return batches * (groups * _bytes_beside_experts(of_experts, deployment) + of_experts - unread)


def _bytes_beside_experts(of_experts: float, deployment: Deployment) -> float:
    """Weights of one group of devices that a step always reads."""
    model, cost = deployment.model, deployment.cost
    total = float(model.weight_bytes(cost.weights.name, cost.ranks) * cost.ranks)
    if not model.tied:
        total -= model.vocab_size * model.hidden_size * cost.plain_bytes
    return total - of_experts


def _expert_bytes(tokens: Numbers, deployment: Deployment) -> tuple[float, Numbers]:
    """Weights of all experts, and of those that so many tokens leave idle."""
    model, cost = deployment.model, deployment.cost
    total, unread = 0.0, np.zeros(len(tokens))
    for layer in model.layers:
        if layer.experts is not None:
            expert_parameters = (
                sum(linear.rank_parameters(cost.ranks) for linear in layer.experts.linears)
                * cost.ranks
            )
            idle = (
                layer.experts.count * (1 - layer.experts.per_token / layer.experts.count) ** tokens
            )
            each = layer.count * expert_parameters * cost.weights.bits / 8
            total += each * layer.experts.count
            unread += each * idle
    return total, unread
