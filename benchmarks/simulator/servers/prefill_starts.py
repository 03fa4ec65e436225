"""What a host takes to start a layer of a prefill, by stack and kind of model.

Below some thousand tokens a prefill of Qwen3-235B takes TensorRT-LLM 170 ms, however long the
prompt and whatever the number of devices: the host starts the kernels of each layer one by one, and
experts have many. Time to first token shows it; that of a whole request, to which all other host
times are fitted, hardly does. So these numbers are fitted to the former, through ``simulate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

from benchmarks.simulator.efficiency_file import as_toml, stack_table
from benchmarks.simulator.servers.measured import ServingRow, waiting
from benchmarks.simulator.servers.simulated import simulate_rows
from benchmarks.simulator.servers.stacks import Stack

# Coefficients of dense layers, and of what experts add.
LAYER, LAYER_EXPERTS = "layer", "layer_experts"
# Seconds a layer that are tried, and then on the way from the best to its neighbours.
TRIED = (0.0, 4e-4, 8e-4, 1.2e-3, 1.6e-3)
BETWEEN = 0.5
# Rows whose first tokens wait for the host if any do: short prompts, few clients.
SHORT, FEW = 1024, 16


def halves(rows: Sequence[ServingRow]) -> tuple[list[ServingRow], list[ServingRow]]:
    """Rows to fit on, and rows kept out: every other configuration of each model.

    Rows that differ in output length only are one configuration: their first tokens are due to the
    same work.
    """
    kinds: dict[tuple[str, str], set[tuple[object, ...]]] = {}
    for row in rows:
        kinds.setdefault((row.backend, row.model), set()).add(_configuration(row))
    fit: list[ServingRow] = []
    kept: list[ServingRow] = []
    for row in rows:
        number = sorted(kinds[row.backend, row.model]).index(_configuration(row))
        (kept if number % 2 else fit).append(row)
    return fit, kept


def _configuration(row: ServingRow) -> tuple[object, ...]:
    return row.input, row.concurrency, row.ranks, row.experts_apart


def with_starts(
    stacks: Mapping[str, Stack], rows: Sequence[ServingRow], name: str
) -> dict[str, Stack]:
    """Stacks with ``name`` fitted to these rows; one that has none of them gets the least."""
    telling = _telling(rows)
    own = {
        backend: _fit(stacks[backend], [row for row in telling if row.backend == backend], name)
        for backend in sorted({row.backend for row in telling})
    }
    least = min(own.values())
    return {
        backend: _with(stack, name, own.get(backend, least)) for backend, stack in stacks.items()
    }


def _telling(rows: Sequence[ServingRow]) -> list[ServingRow]:
    """Rows that wait for prefill alone and may show the host: one of each configuration."""
    chosen: dict[tuple[object, ...], ServingRow] = {}
    for row, waits in zip(rows, waiting(rows)):
        if not waits and not row.is_burst and row.input <= SHORT and row.concurrency <= FEW:
            chosen.setdefault((row.backend, row.model, *_configuration(row)), row)
    return list(chosen.values())


def _fit(stack: Stack, rows: Sequence[ServingRow], name: str) -> float:
    def losses(tried: Sequence[float]) -> list[tuple[float, float]]:
        return [(_ttft_loss(_with(stack, name, each), rows), each) for each in tried]

    found = losses(TRIED)
    best = min(found)[1]
    place = TRIED.index(best)
    ends = TRIED[max(0, place - 1)], TRIED[min(place + 1, len(TRIED) - 1)]
    found += losses([best + BETWEEN * (end - best) for end in ends if end != best])
    return round(min(found)[1], 7)


def _with(stack: Stack, name: str, seconds: float) -> Stack:
    if name == LAYER:
        return replace(stack, host=replace(stack.host, layer=seconds))
    return replace(stack, host=replace(stack.host, layer_experts=seconds))


def _ttft_loss(stack: Stack, rows: Sequence[ServingRow]) -> float:
    """Mean ``|log(simulated / measured)|`` of time to first token."""
    coefficients = {row: as_toml(stack_table(stack.as_measured(row))) for row in rows}
    errors = [
        abs(log(each.ttft / row.ttft))
        for row, each in zip(rows, simulate_rows(rows, coefficients))
        if each is not None
    ]
    return sum(errors) / len(errors)
