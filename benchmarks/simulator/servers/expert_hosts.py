"""What a layer with experts adds to the start of a prefill, by stack, fitted to half of the rows.

Below some thousand tokens a prefill of Qwen3-235B takes TensorRT-LLM 170 ms, however long the
prompt and whatever the number of devices: the host starts the kernels of each layer one by one, and
experts have many. Time to first token shows it, and time per token hardly does. So this one number
is fitted to the former, through ``simulate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

from benchmarks.simulator.efficiency_file import as_toml, stack_table
from benchmarks.simulator.servers.measured import ServingRow, waiting
from benchmarks.simulator.servers.simulated import simulate_rows
from benchmarks.simulator.servers.stacks import Stack

# Seconds a layer that are tried; then those between the best and its neighbours.
TRIED = (0.0, 4e-4, 8e-4, 1.2e-3, 1.6e-3, 2e-3)
BETWEEN = (0.25, 0.5, 0.75)


def halves(rows: Sequence[ServingRow]) -> tuple[list[ServingRow], list[ServingRow]]:
    """Rows to fit on, and rows kept out: every other configuration of each model.

    Rows that differ in output length only are one configuration: their first tokens are due to the
    same work.
    """
    kinds: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
    for row in rows:
        configurations = kinds.setdefault((row.backend, row.model), [])
        if (own := _configuration(row)) not in configurations:
            configurations.append(own)
    fit: list[ServingRow] = []
    kept: list[ServingRow] = []
    for row in rows:
        number = sorted(kinds[row.backend, row.model]).index(_configuration(row))
        (kept if number % 2 else fit).append(row)
    return fit, kept


def _configuration(row: ServingRow) -> tuple[object, ...]:
    return row.input, row.concurrency, row.ranks, row.experts_apart


def with_experts(stacks: Mapping[str, Stack], rows: Sequence[ServingRow]) -> dict[str, Stack]:
    """Stacks with ``layer_experts`` fitted to these rows; one that served none gets the least."""
    own: dict[str, float] = {}
    for backend in sorted({row.backend for row in rows}):
        chosen = [row for row in rows if row.backend == backend]
        own[backend] = _fit(stacks[backend], chosen)
    least = min(own.values())
    return {name: _with(stack, own.get(name, least)) for name, stack in stacks.items()}


def _fit(stack: Stack, rows: Sequence[ServingRow]) -> float:
    losses: dict[float, float] = {}

    def loss(seconds: float) -> float:
        if seconds not in losses:
            losses[seconds] = ttft_loss(_with(stack, seconds), rows)
        return losses[seconds]

    best = min(TRIED, key=loss)
    place = TRIED.index(best)
    ends = TRIED[max(0, place - 1)], TRIED[min(place + 1, len(TRIED) - 1)]
    near = [best + share * (end - best) for end in ends for share in BETWEEN]
    return round(min([best, *near], key=loss), 7)


def _with(stack: Stack, seconds: float) -> Stack:
    return replace(stack, host=replace(stack.host, layer_experts=seconds))


def ttft_loss(stack: Stack, rows: Sequence[ServingRow]) -> float:
    """Mean ``|log(simulated / measured)|`` of time to first token where nothing else waits."""
    free = [row for row, waits in zip(rows, waiting(rows)) if not waits]
    coefficients = {row: as_toml(stack_table(stack.as_measured(row))) for row in free}
    errors = [
        abs(log(each.ttft / row.ttft))
        for row, each in zip(free, simulate_rows(free, coefficients))
        if each is not None and not each.full
    ]
    return sum(errors) / len(errors)
