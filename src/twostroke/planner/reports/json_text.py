"""What ``twostroke plan --json`` prints: plans, best first, and all that the tables say."""

from __future__ import annotations

import json
from typing import Any

from twostroke.planner.commands import serve_commands
from twostroke.planner.make_plans import Planned
from twostroke.planner.memory_table import MemoryTable
from twostroke.planner.plan import Plan
from twostroke.planner.reports.plan_fields import plan_fields, prefill_fields, split_fields


def plans_json(planned: Planned) -> str:
    """The answer as JSON; times in seconds, money in US dollars."""
    return json.dumps(plans_fields(planned), indent=2)


def plans_fields(planned: Planned) -> dict[str, Any]:
    """The answer as plain values."""
    lengths, traffic = planned.traffic.lengths, planned.traffic
    middle = planned.middle
    return {
        "model": planned.model,
        "traffic": {
            "users": traffic.users,
            "think_time": traffic.think_time,
            "rate": traffic.rate or None,
            "input_mean": round(lengths.prompt, 1),
            "input_p95": lengths.prompt_at(95),
            "output_mean": round(lengths.output, 1),
            "output_p95": lengths.output_at(95),
            "prefix": lengths.cached,
        },
        "targets": {goal.field: goal.limit for goal in planned.goals},
        "candidates": planned.found.evaluated,
        "plans": [
            plan_fields(planned.search, shown.plan, shown.binding, shown.lever)
            for shown in planned.shown
        ],
        "cheapest_at_the_middle": None if middle is None else _which(middle),
        "rejected": planned.rejected,
        "prefill_and_decode_otherwise": planned.other_pools or None,
        "memory": _memory(list(planned.memory.values())[-1]) if planned.memory else None,
        "memory_of_prefill": _memory(next(iter(planned.memory.values())))
        if len(planned.memory) > 1
        else None,
        "pareto": [
            _which(point.plan) | {"tpot_p95_high": round(point.tpot, 6)} for point in planned.front
        ],
        "sensitivity": [
            {
                "question": each.question,
                "answer": each.kind,
                "cost_per_hour": None if each.plan is None else round(each.plan.cost_per_hour, 4),
            }
            for each in planned.variations
        ],
        "commands": []
        if planned.best is None
        else [command for _, command in serve_commands(planned.search, planned.best.plan)],
        "notes": list(planned.notes),
    }


def _which(plan: Plan) -> dict[str, Any]:
    return {
        "gpu": plan.engine.gpu,
        **split_fields(plan.engine),
        "replicas": plan.replicas + plan.spare,
        "prefill": prefill_fields(plan),
        "cost_per_hour": round(plan.cost_per_hour, 4),
    }


def _memory(table: MemoryTable) -> dict[str, Any]:
    return {
        "device_bytes": table.total,
        "bytes": {name: round(size) for name, size in table.rows},
        "kv_tokens": table.kv_tokens,
        "requests_of_mean_length": table.mean_requests,
        "mean_length": table.mean_tokens,
        "requests_of_longest_length": table.longest_requests,
        "longest_length": table.longest_tokens,
    }
