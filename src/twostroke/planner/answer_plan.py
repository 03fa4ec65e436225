"""``python -m twostroke.planner.answer_plan``: plans for the page Plan, by formulas alone."""

from __future__ import annotations

from typing import Any

from twostroke.planner.make_plans import make_plans, nearest_miss
from twostroke.planner.options import GoalOptions, PlanOutputOptions, SearchOptions, TrafficOptions
from twostroke.planner.progress import PlanProgress
from twostroke.planner.reports.json_text import plans_fields
from twostroke.questions.answering import answer_lines
from twostroke.questions.foresight import AskedPlan

# Fewer engines than the command searches, so that sliders are answered while they are looked at.
SEARCHED = SearchOptions(
    gpus="l4,a100-80gb-sxm,h100-sxm,h200,b200",
    weight_dtype="auto,fp8",
    kv_cache_dtype="auto",
    max_num_seqs="16,64,256",
    max_num_batched_tokens="2048,8192",
)


def answer_plan(asked: AskedPlan) -> dict[str, Any]:
    """What ``twostroke plan --json`` prints, and why where there is no plan.

    Raises:
        ConfigError: The load contradicts itself, or the model takes no such lengths.
    """
    planned = make_plans(
        asked.model,
        TrafficOptions(users=asked.users, input=asked.prompt, output=asked.output),
        GoalOptions(ttft=_goal(asked.ttft), tpot=_goal(asked.tpot)),
        SEARCHED,
        PlanOutputOptions(simulate=0),
        PlanProgress(),
    )
    why = "" if planned.best is not None else nearest_miss(planned)
    return {**plans_fields(planned), "why_none": why, "command": _command(asked)}


def _goal(seconds: float | None) -> tuple[str, ...]:
    return () if seconds is None else (f"p95={seconds:g}",)


def _command(asked: AskedPlan) -> str:
    """The command that searches all devices, and proves the best by simulation."""
    goals = [
        f" --{name} p95={seconds:g}"
        for name, seconds in (("ttft", asked.ttft), ("tpot", asked.tpot))
        if seconds is not None
    ]
    load = f"--users {asked.users} --input {asked.prompt} --output {asked.output}"
    return f"twostroke plan {asked.model} {load}{''.join(goals)}"


if __name__ == "__main__":
    answer_lines(AskedPlan, answer_plan)
