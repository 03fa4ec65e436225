"""Whole servers: TPOT and TTFT of a closed loop of clients, from the time of its steps.

Work is conserved: in a closed loop of C clients with prompts of I and outputs of O tokens, a
request takes ``T = C x + O d`` from arrival to end. While it runs, every client prefills once, at x
seconds each, and it decodes O times, at d seconds a step; both are steps of the cost model. TPOT is
``(T - TTFT) / (O - 1)``.

TTFT depends on how clients start and bunch, which the data does not tell. In the first of w rounds
all prompts come at once; later, one finds ``bunch - 1`` others before or beside it, no more than
share a step: ``TTFT = d + start + x ((C + 1) / 2 / w + (1 - 1 / w) min(bunch, group + 1))``. A
stack that prefills before it decodes keeps its clients in step, and every round is like the first:
``TTFT = d + start + x (C + group) / 2``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

from benchmarks.simulator.data import ServingRow
from benchmarks.simulator.search import Space, search
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import Efficiencies, HostEfficiency
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.timing.step_shape import StepShape

_LLAMA = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
CONFIGS = {
    "Qwen/Qwen3-32B": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "meta-llama/Llama-3.1-70B": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
# Prompts of one prefill step share this many tokens: the default of all three stacks.
BUDGET = 8192
# Of a device's memory, beside weights and KV cache: activations, graphs, communication buffers.
MEMORY_SHARE, RESERVED = 0.9, 3e9
# A server's front end and one client move no more tokens than about this, whatever the device:
# above it, requests wait for them. Found in the data: at the same load per device, TTFT jumps where
# the output rate passes it.
FRONT_END = 8000.0
# A stack that prefills before it decodes keeps its clients in step: all prompts of a round come at
# once.
BACKENDS = ("sglang", "trtllm", "vllm")
LOCKSTEP = ("sglang",)
OVERLAP = ("trtllm",)

HOST_SPACE: Space = {
    "step": (1e-3, 1e-5, 1e-2, 0.4),
    "request": (2e-5, 1e-6, 3e-4, 0.4),
    "layer": (2e-4, 1e-5, 2e-3, 0.4),
}
FACTOR_SPACE: Space = {"decode": (1.0, 0.8, 1.3, 0.03), "prefill": (1.05, 0.7, 1.6, 0.04)}
ARRIVAL_SPACE: Space = {
    "start": (0.02, 1e-4, 0.2, 0.4),
    "bunch": (2.0, 0.5, 6.0, 0.2),
    "rounds": (8.0, 2.0, 30.0, 0.3),
}
# What a stack's coefficient must gain in mean error to leave that of all stacks by a factor of e.
PULL = 0.01


@dataclass(frozen=True, slots=True)
class Stack:
    """What is fitted for a serving stack: its host, whole-step factors, and how clients bunch."""

    host: HostEfficiency
    decode: float = 1.0
    prefill: float = 1.0
    start: float = 0.02
    bunch: float = 2.0
    rounds: float = 8.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """``full``: the KV cache holds fewer requests than clients, or the front end is full."""

    ttft: float
    tpot: float
    full: bool


def kv_format(row: ServingRow) -> str:
    """The KV cache's format: fp8 for the fp8 checkpoints that TensorRT-LLM serves.

    Nothing in the data says so, but decoding with a long context takes half the time that a
    bfloat16 cache allows.
    """
    return "fp8" if row.backend == "trtllm" and row.weights == "fp8" else "auto"


class Closed:
    """Predicts rows. Keeps one cost model for each model, format, degree and stack."""

    def __init__(self, hardware: HardwareSheet, efficiencies: Efficiencies) -> None:
        self.hardware = hardware
        self.efficiencies = efficiencies
        self.sheets: dict[str, ModelSpec] = {
            name: parse_model(config) for name, config in CONFIGS.items()
        }
        self._bases: dict[tuple[str, str, int, str], RooflineCostModel] = {}

    def cost_model(self, row: ServingRow, stack: Stack) -> RooflineCostModel:
        """The row's cost model under a stack's coefficients; kernel times are kept."""
        key = (row.model, row.weights, row.ranks, kv_format(row))
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = RooflineCostModel(
                self.hardware,
                self.sheets[row.model],
                Parallel(tensor=row.ranks),
                Dtypes(weights=row.weights, kv_cache=kv_format(row)),
                self.efficiencies,
            )
        base.efficiencies = replace(
            self.efficiencies, host=stack.host, step_decode=stack.decode, step_prefill=stack.prefill
        )
        return base

    def capacity(self, row: ServingRow) -> float:
        """Tokens that the KV cache of all devices holds."""
        sheet = self.sheets[row.model]
        free = (
            MEMORY_SHARE * self.hardware.memory_bytes
            - sheet.weight_bytes(row.weights, row.ranks)
            - RESERVED
        )
        return max(free, 0.0) / sheet.kv_bytes_per_token(kv_format(row), row.ranks)

    def predict(self, row: ServingRow, stack: Stack) -> Prediction:
        cost = self.cost_model(row, stack)
        length = row.input + row.output
        running = max(1, min(row.concurrency, int(self.capacity(row) / length)))
        context = round(running * (row.input + row.output / 2))
        decode = cost.step(StepShape(running, context, (), running)).seconds
        lockstep = row.backend in LOCKSTEP
        group = max(1, min(running, BUDGET // row.input))
        if lockstep:
            prefill = cost.step(StepShape(0, 0, ((row.input, 0),) * group, group)).seconds / group
            ahead = (running + group) / 2
        else:
            prefill = (
                cost.step(StepShape(running, context, ((row.input, 0),), running + 1)).seconds
                - decode
            )
            ahead = (running + 1) / 2 / stack.rounds + (1 - 1 / stack.rounds) * min(
                stack.bunch, group + 1
            )
        whole = running * prefill + row.output * decode
        ttft = decode + stack.start + prefill * min(ahead, running)
        tpot = max(whole - ttft, decode) / (row.output - 1)
        queue = whole * (row.concurrency / running - 1)
        full = running < row.concurrency or running * row.output / whole > FRONT_END
        return Prediction(ttft + queue, tpot, full)


def waiting(rows: Sequence[ServingRow], limit: float = 1.25) -> list[bool]:
    """Which rows wait for something other than prefill, by measurement alone.

    How long an output will be makes no difference to when its first token comes, unless requests
    queue for a place that others leave only when they end. So a row waits if its TTFT is more than
    ``limit`` times the least among rows that differ from it in output length only.
    """

    def same(row: ServingRow) -> tuple[object, ...]:
        return row.backend, row.model, row.weights, row.ranks, row.input, row.concurrency

    least: dict[tuple[object, ...], float] = {}
    for row in rows:
        least[same(row)] = min(row.ttft, least.get(same(row), row.ttft))
    return [row.ttft > limit * least[same(row)] for row in rows]


def fit_stacks(closed: Closed, rows: Sequence[ServingRow], rounds: int = 250) -> dict[str, Stack]:
    """Coefficients of every stack, those that have no rows included.

    They have the least mean of ``|log(predicted / measured)|`` of TPOT, and the least median of
    that of TTFT, whose errors have long tails.

    Whole-step factors and arrivals are one for all stacks: they are the device's and the clients'.
    Host times are fitted to all rows first; each stack's own may leave those as far as its rows
    insist (``PULL``).
    """
    shared, arrivals = _fit_shared(closed, rows, rounds)
    stacks = {}
    for backend in BACKENDS:
        backend_rows = [row for row in rows if row.backend == backend]
        host = {name: shared[name] for name in HOST_SPACE}
        if backend_rows:
            host = _fit_host(closed, backend_rows, shared, arrivals, rounds)
        stacks[backend] = _stack(backend, {**shared, **host}, arrivals)
    return stacks


def _stack(backend: str, steps: Mapping[str, float], arrivals: Mapping[str, float]) -> Stack:
    host = HostEfficiency(
        step=steps["step"],
        request=steps["request"],
        token=0.0,
        layer=steps["layer"],
        overlap=backend in OVERLAP,
    )
    return Stack(host, steps["decode"], steps["prefill"], **arrivals)


def _fit_shared(
    closed: Closed, rows: Sequence[ServingRow], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    arrivals = {name: start for name, (start, *_) in ARRIVAL_SPACE.items()}
    steps: dict[str, float] = {}

    def step_loss(values: dict[str, float]) -> float:
        return _tpot_loss(closed, rows, {b: _stack(b, values, arrivals) for b in BACKENDS})

    free = [row for row, waits in zip(rows, waiting(rows)) if not waits]

    def arrival_loss(values: dict[str, float]) -> float:
        stacks = {b: _stack(b, steps, values) for b in BACKENDS}
        predictions = [(row, closed.predict(row, stacks[row.backend])) for row in free]
        return median(abs(log(p.ttft / row.ttft)) for row, p in predictions if not p.full)

    steps = search(step_loss, {**HOST_SPACE, **FACTOR_SPACE}, rounds)
    arrivals = search(arrival_loss, ARRIVAL_SPACE, rounds)
    return steps, arrivals


def _fit_host(
    closed: Closed,
    rows: Sequence[ServingRow],
    shared: Mapping[str, float],
    arrivals: Mapping[str, float],
    rounds: int,
) -> dict[str, float]:
    def loss(values: dict[str, float]) -> float:
        stack = _stack(rows[0].backend, {**shared, **values}, arrivals)
        pull = sum(abs(log(value / shared[name])) for name, value in values.items())
        return _tpot_loss(closed, rows, {rows[0].backend: stack}) + PULL * pull

    space: Space = {
        name: (shared[name], low, high, scale) for name, (_, low, high, scale) in HOST_SPACE.items()
    }
    return search(loss, space, rounds)


def _tpot_loss(closed: Closed, rows: Sequence[ServingRow], stacks: Mapping[str, Stack]) -> float:
    return sum(
        abs(log(closed.predict(row, stacks[row.backend]).tpot / row.tpot)) for row in rows
    ) / len(rows)


def leave_one_model_out(
    closed: Closed, rows: Sequence[ServingRow], rounds: int = 250
) -> list[Prediction]:
    """Every row predicted by coefficients that no row of its model had a part in."""
    stacks = {
        model: fit_stacks(closed, [row for row in rows if row.model != model], rounds)
        for model in sorted({row.model for row in rows})
    }
    return [closed.predict(row, stacks[row.model][row.backend]) for row in rows]
