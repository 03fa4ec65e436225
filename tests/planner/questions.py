"""Small planning questions for the tests of the planner."""

from __future__ import annotations

from typing import Any

from twostroke.model_spec.public_models import find_model
from twostroke.planner.engines import EngineChoice
from twostroke.planner.goals import parse_goals
from twostroke.planner.make_plans import Planned, make_plans, make_search
from twostroke.planner.options import GoalOptions, PlanOutputOptions, SearchOptions, TrafficOptions
from twostroke.planner.progress import PlanProgress
from twostroke.planner.search import Search
from twostroke.planner.traffic import read_traffic

FEW: dict[str, Any] = {
    "gpus": "h100,l40s,l4",
    "tp": "1,2",
    "pp": "1",
    "pools": "together",
    "max_num_seqs": "64,256",
    "max_num_batched_tokens": "1024,4096",
}


def engine(**changes: Any) -> EngineChoice:
    """One H100 in bfloat16, unless said otherwise."""
    usual: dict[str, Any] = {
        "gpu": "h100-sxm",
        "tp": 1,
        "weights": "bf16",
        "kv_cache": "bf16",
        "seqs": 256,
        "budget": 4096,
    }
    return EngineChoice(**usual | changes)


def search_for(
    model: str = "llama-3.1-8b",
    traffic: dict[str, Any] | None = None,
    goals: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> Search:
    """A search over few engines."""
    options = SearchOptions(**FEW | (limits or {}))
    goal_options = GoalOptions(**goals or {"ttft": ("p95=0.5",), "tpot": ("p95=0.04",)})
    asked = TrafficOptions(**traffic or {"rate": 20.0, "input": 800, "output": 200})
    read = read_traffic(asked, find_model(model).context_length)
    return make_search(model, read, parse_goals(goal_options), goal_options, options)


def planned(
    model: str = "llama-3.1-8b",
    traffic: dict[str, Any] | None = None,
    goals: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
) -> Planned:
    """A whole answer over few engines; nothing is simulated unless asked for."""
    return make_plans(
        model,
        TrafficOptions(**traffic or {"rate": 20.0, "input": 800, "output": 200}),
        GoalOptions(**goals or {"ttft": ("p95=0.5",), "tpot": ("p95=0.04",)}),
        SearchOptions(**FEW | (limits or {})),
        PlanOutputOptions(**{"simulate": 0} | (output or {})),
        PlanProgress(),
    )
