"""What ``twostroke plan --json`` prints: plans, best first, and all that the tables say."""

from __future__ import annotations

import json
from typing import Any

from twostroke.planner.make_plans import Planned
from twostroke.planner.report_rows import plan_fields


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
        "cheapest_at_the_middle": None
        if middle is None
        else {
            "gpu": middle.engine.gpu,
            "tensor_parallel": middle.engine.tp,
            "replicas": middle.replicas + middle.spare,
            "cost_per_hour": round(middle.cost_per_hour, 4),
        },
        "rejected": planned.rejected,
        "notes": list(planned.notes),
    }
