"""What a plan's devices hold, in bytes of each, and how many requests that leaves room for."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.planner.engines import EngineChoice
from twostroke.planner.plan import Plan
from twostroke.planner.search import Search
from twostroke.simulator.deployment.memory import activation_bytes, runtime_bytes, usable_bytes


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes of one device, and requests of a replica.

    Attributes:
        rows: What takes memory, and how much.
        total: All bytes of the device.
        kv_tokens: Tokens that the KV cache of a replica holds.
        mean_requests: Requests of mean length, at their longest, that fit at once.
        longest_requests: Requests of the largest length that is allowed.
        note: On experts, if the model has some.
    """

    rows: tuple[tuple[str, float], ...]
    total: int
    kv_tokens: int
    mean_tokens: int
    mean_requests: int
    longest_tokens: int
    longest_requests: int
    note: str = ""


def memory_tables(search: Search, plan: Plan) -> dict[str, MemoryTable]:
    """The memory of a plan's devices, by title."""
    if plan.prompts is None:
        return {"Memory of each device, best plan": memory_table(search, plan.engine)}
    return {
        "Memory of each prefill device, best plan": memory_table(search, plan.prompts.engine),
        "Memory of each decode device, best plan": memory_table(search, plan.engine),
    }


def memory_table(search: Search, engine: EngineChoice) -> MemoryTable:
    """The memory of one of the engine's devices."""
    builder, lengths = search.builder, search.traffic.lengths
    deployment = builder.deployment(engine)
    info, sheet = deployment.info, deployment.hardware
    cache = builder.cache(engine)
    activations, logits = activation_bytes(deployment.model, deployment.scheduler)
    kept_free = sheet.memory_bytes - usable_bytes(cache, sheet)
    parts = [
        (f"weights ({engine.weights})", float(deployment.weight_bytes)),
        (f"KV cache ({engine.kv_cache})", float(deployment.kv_bytes)),
        ("recurrent states", float(deployment.state_bytes)),
        ("activations and logits", float(activations + logits)),
        ("runtime", runtime_bytes(sheet, deployment.model, deployment.cost.parallel)),
        ("kept free", kept_free),
    ]
    rest = sheet.memory_bytes - sum(size for _, size in parts)
    parts.append(("left over", max(rest, 0.0)))
    mean = round(lengths.prompt + lengths.output)

    def fit(tokens: int) -> int:
        if not deployment.kv_bytes:
            return deployment.scheduler.max_num_seqs
        return info.kv_groups.num_requests(info.num_blocks, tokens, info.block_size)

    return MemoryTable(
        rows=tuple((name, size) for name, size in parts if size > 1e6),
        total=sheet.memory_bytes,
        kv_tokens=info.num_blocks * info.block_size // info.kv_groups.count,
        mean_tokens=mean,
        mean_requests=fit(mean),
        longest_tokens=deployment.max_model_len,
        longest_requests=fit(deployment.max_model_len),
        note=_experts(search),
    )


def _experts(search: Search) -> str:
    for layer in search.builder.spec.layers:
        if layer.experts is not None:
            experts = layer.experts
            return (
                f"all {experts.count} experts of a layer are in memory; a token reads"
                f" {experts.per_token}"
            )
    return ""
