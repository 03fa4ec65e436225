"""What ``twostroke plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TextIO

from twostroke.core.flags.byte_sizes import format_decimal_bytes
from twostroke.observability.tables import print_table
from twostroke.planner.commands import caveats, serve_commands, simulate_command
from twostroke.planner.goals import Goal
from twostroke.planner.make_plans import Planned, ShownPlan
from twostroke.planner.memory_table import MemoryTable
from twostroke.planner.reports.plan_fields import kv_occupancy, marks, proof_runs
from twostroke.planner.what_if import shown_goals

# Plans that stand side by side: each a column, so that no figure is cut.
PLANS_ACROSS = 5
# Plans whose reasons are spelled out.
EXPLAINED = 3
COMMANDS = "Run it"
MEMORY_HEADER = ("", "bytes", "share")


def print_plans(planned: Planned, stream: TextIO) -> None:
    """The ranked table, then sections: reasons, other devices, memory, commands, what if."""
    print(f"{planned.model}: {planned.traffic.describe()}", file=stream)
    targets = ", ".join(goal.text for goal in planned.goals) or "none"
    print(f"Targets: {targets}; {planned.found.evaluated:,} candidates", file=stream)
    if planned.best is None:
        print("\nNo plan meets the targets at the pessimistic end of the interval.", file=stream)
    else:
        header, rows = plan_rows(planned)
        for first in range(0, len(rows), PLANS_ACROSS):
            block = rows[first : first + PLANS_ACROSS]
            figures = [(name, *values) for name, *values in zip(header, *block)]
            print_table(figures[0], figures[1:], stream)
        print(
            "In brackets the pessimistic end of the interval, which meets the targets.", file=stream
        )
    for title, text in sections(planned):
        print(f"\n{title}", file=stream)
        print("\n".join(f"  {line}" for line in text.splitlines()), file=stream)


def plan_rows(planned: Planned) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the ranked table: a plan each."""
    goals = shown_goals(planned.goals)
    times = (f"{goal.name}, ms" for goal in goals)
    before = ("", "replicas", "weights", "KV cache", "max seqs", "token budget", "drafts")
    after = (
        "output tokens/s",
        "KV in use",
        "load",
        "$ an hour",
        "$ a M tokens",
        "kW",
        "binding",
        "times by",
    )
    rows = [
        _row(planned, number, shown, goals) for number, shown in enumerate(planned.shown, start=1)
    ]
    return (*before, *times, *after), rows


def sections(planned: Planned) -> Iterator[tuple[str, str]]:
    """Titles and texts of all that stands below the table."""
    for number, shown in enumerate(planned.shown[:EXPLAINED], start=1):
        yield (
            f"{number}. {shown.plan.devices_text}, {shown.plan.engine.formats_text}",
            _reason(shown),
        )
    yield "At the middle of the interval", _middle(planned)
    if planned.rejected:
        texts = (f"{gpu}: {text}" for gpu, text in planned.rejected.items())
        yield "Other devices", "\n".join(texts)
    if planned.other_pools and planned.best is not None:
        is_apart = planned.best.plan.prompts is not None
        title = "Prefill and decode together" if is_apart else "Prefill and decode apart"
        yield title, planned.other_pools
    if planned.best is None:
        return
    plan = planned.best.plan
    for title, table in planned.memory.items():
        yield title, _memory(table)
    if planned.front:
        yield "Cost against TPOT: none is both cheaper and faster", _front(planned)
    if planned.variations:
        texts = (f"{each.question}: {each.kind}" for each in planned.variations)
        yield "What changes the answer", "\n".join(texts)
    yield COMMANDS, _commands(planned)
    texts = (
        f"{name.replace('_', ' ')}: {mark}" for name, mark in marks(planned.search, plan).items()
    )
    yield "Where the numbers come from", "\n".join(texts)


def _row(planned: Planned, number: int, shown: ShownPlan, goals: Sequence[Goal]) -> tuple[str, ...]:
    plan, engine = shown.plan, shown.plan.engine
    budgets = "" if plan.prompts is None else f"{plan.prompts.engine.budget:,}"
    times = []
    for goal in goals:
        _, middle, high = plan.times(goal)
        times.append(f"{_shown(middle)} ({_shown(high)})")
    runs = proof_runs(plan)
    return (
        f"{number}. {plan.devices_text}",
        plan.replicas_text,
        engine.weights,
        engine.kv_cache,
        f"{engine.seqs}",
        f"{budgets} : {engine.budget:,}" if budgets else f"{engine.budget:,}",
        f"{engine.drafts.tokens or '-'}",
        *times,
        f"{plan.output_throughput:,.0f}",
        f"{kv_occupancy(planned.search, plan):.0%}",
        f"{plan.middle.load:.0%}",
        f"{plan.cost_per_hour:,.2f}",
        f"{plan.cost_per_million:.2f}",
        f"{plan.watts / 1e3:,.2f}",
        shown.binding.constraint,
        f"{runs} runs" if runs else "formulas",
    )


def _shown(seconds: float) -> str:
    """Milliseconds in three digits."""
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _reason(shown: ShownPlan) -> str:
    text = f"binding: {shown.binding.constraint} ({shown.binding.text})"
    if shown.lever is not None:
        text += f"\nnext lever: {shown.lever.change}: {shown.lever.effect}"
    return text


def _middle(planned: Planned) -> str:
    plan, best = planned.middle, planned.best
    if plan is None:
        return "no plan meets the targets either"
    if best is not None and plan.cost_per_hour >= best.plan.cost_per_hour - 0.005:
        return "no plan is cheaper"
    return f"{plan.describe()}: ${plan.cost_per_hour:,.2f} an hour, by formulas"


def _memory(table: MemoryTable) -> str:
    stream = StringIO()
    print_table(MEMORY_HEADER, memory_rows(table), stream)
    lines = [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]
    return "\n".join([*lines, *memory_notes(table)])


def memory_rows(table: MemoryTable) -> list[tuple[str, str, str]]:
    """What takes memory of a device, how much, and its share."""
    rows = [
        (name, format_decimal_bytes(size), f"{size / table.total:.1%}") for name, size in table.rows
    ]
    return [*rows, ("all", format_decimal_bytes(table.total), "")]


def memory_notes(table: MemoryTable) -> list[str]:
    """How many requests fit; what is to be known of experts."""
    fit = (
        f"{table.kv_tokens:,} tokens of KV cache: {table.mean_requests:,} requests of"
        f" {table.mean_tokens:,} tokens (the mean), {table.longest_requests:,} of"
        f" {table.longest_tokens:,} (the longest)"
    )
    return [fit, table.note] if table.note else [fit]


def _front(planned: Planned) -> str:
    return "\n".join(
        f"${point.plan.cost_per_hour:,.2f} an hour: TPOT P95 {1e3 * point.tpot:.3g} ms,"
        f" {point.plan.describe()}"
        for point in planned.front
    )


def _commands(planned: Planned) -> str:
    if planned.best is None:
        return ""
    search, plan = planned.search, planned.best.plan
    lines = []
    for where, command in serve_commands(search, plan):
        lines += [f"# {where}", command]
    lines += [f"# {text}" for text in caveats(search, plan)]
    lines += ["# the simulation of it all", simulate_command(search, plan)]
    return "\n".join(lines)
