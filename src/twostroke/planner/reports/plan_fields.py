"""The figures of plans as rows, for the terminal, JSON and the page alike."""

from __future__ import annotations

from typing import Any

from twostroke.planner.engines import EngineChoice
from twostroke.planner.goals import Goal, Metric
from twostroke.planner.plan import Plan
from twostroke.planner.prices import GUESSED
from twostroke.planner.reasons import Binding, Lever
from twostroke.planner.search import Search

# Shown of every plan, whether they are targets or not.
SHOWN: tuple[tuple[Metric, float], ...] = (
    ("ttft", 50.0),
    ("ttft", 95.0),
    ("tpot", 50.0),
    ("tpot", 95.0),
    ("e2e", 95.0),
)


def plan_fields(search: Search, plan: Plan, bound: Binding, lever: Lever | None) -> dict[str, Any]:
    """A plan as plain values; times in seconds, money in US dollars."""
    engine, middle = plan.engine, plan.middle
    sheet = search.builder.sheet(engine.gpu)
    proof = plan.proof
    fields: dict[str, Any] = {
        "gpu": engine.gpu,
        "memory_bandwidth": sheet.memory_bandwidth,
        **split_fields(engine),
        "replicas": plan.replicas + plan.spare,
        "spare_replicas": plan.spare,
        "prefill": prefill_fields(plan),
        "devices": plan.devices,
        "weight_dtype": engine.weights,
        "kv_cache_dtype": engine.kv_cache,
        "max_num_seqs": engine.seqs,
        "max_num_batched_tokens": engine.budget,
        "speculative_tokens": engine.drafts.tokens,
    }
    for metric, percentile in SHOWN:
        goal = Goal(metric, percentile, 1.0)
        low, value, high = plan.times(goal)
        fields[goal.field] = round(value, 6)
        fields[f"{goal.field}_interval"] = [round(low, 6), round(high, 6)]
    for goal in search.goals:
        fields[goal.field] = round(plan.times(goal)[1], 6)
        fields[f"{goal.field}_interval"] = [round(x, 6) for x in plan.times(goal)[::2]]
    return fields | {
        "request_throughput": round(middle.rate * plan.replicas, 4),
        "output_throughput": round(plan.output_throughput, 2),
        "running_requests": round(middle.running, 2),
        "kv_occupancy": round(kv_occupancy(search, plan), 4),
        "utilisation": round(middle.load, 4),
        "cost_per_hour": round(plan.cost_per_hour, 4),
        "cost_per_million_tokens": round(plan.cost_per_million, 4),
        "watts": round(plan.watts, 1),
        "binding_constraint": bound.constraint,
        "binding_reason": bound.text,
        "next_lever": None if lever is None else lever.change,
        "lever_effect": None if lever is None else lever.effect,
        "times_from": "formulas" if proof is None else f"{proof_runs(plan)} simulations",
        "marks": marks(search, plan),
    }


def split_fields(engine: EngineChoice) -> dict[str, Any]:
    """How a replica's devices share the model."""
    return {
        "tensor_parallel": engine.tp,
        "data_parallel": engine.dp,
        "pipeline_parallel": engine.pp,
        "expert_parallel": engine.ep,
    }


def prefill_fields(plan: Plan) -> dict[str, Any] | None:
    """Replicas that compute prompts for those of the plan, if there are any."""
    prompts = plan.prompts
    if prompts is None:
        return None
    return {
        "gpu": prompts.engine.gpu,
        **split_fields(prompts.engine),
        "replicas": prompts.replicas + prompts.spare,
        "spare_replicas": prompts.spare,
        "max_num_seqs": prompts.engine.seqs,
        "max_num_batched_tokens": prompts.engine.budget,
        "utilisation": round(prompts.loads["seconds"], 4),
    }


def kv_occupancy(search: Search, plan: Plan) -> float:
    """Share of the KV cache in use, on average."""
    if plan.proof is not None:
        return plan.proof.mean("kv_mean")
    deployment = search.builder.deployment(plan.engine)
    if not deployment.kv_bytes:
        return 0.0
    held = (
        deployment.info.num_blocks * deployment.info.block_size // deployment.info.kv_groups.count
    )
    return min(plan.middle.running * search.traffic.lengths.context / held, 1.0)


def proof_runs(plan: Plan) -> int:
    """How many simulations stand behind a plan."""
    return 0 if plan.proof is None else sum(map(len, plan.proof.runs.values()))


def marks(search: Search, plan: Plan) -> dict[str, str]:
    """Where the numbers come from: measured, data sheet or guessed."""
    cost, sheet = search.builder.cost(plan.engine), search.builder.sheet(plan.engine.gpu)
    efficiencies = cost.efficiencies
    measured = "measured" if efficiencies.measured else ""
    fitted = _names(efficiencies.origins["gemm.bf16"], sheet.title)
    step_times = measured or (
        "measured kernels of this device" if fitted else "data sheet, kernels of other devices"
    )
    price = plan.price
    result = {
        "step_times": step_times,
        "memory_bandwidth": "data sheet",
        "price": GUESSED if price.source == GUESSED else f"{price.source}".strip(),
        "price_date": price.date or "undated",
        "watts": sheet.sources.get("power", GUESSED),
    }
    if plan.engine.drafts.tokens:
        result["acceptance"] = "as given"
    if plan.spare:
        result["replica_availability"] = (
            GUESSED if search.options.replica_availability == 0.99 else "as given"
        )
    return result


def _names(source: str, title: str) -> bool:
    """Whether coefficients were fitted to the device of this title."""
    words = title.replace("NVIDIA", "").split()
    return bool(words) and words[0] in source and "together" not in source
