"""What a serving stack adds to kernels, fitted to how long requests of measured servers took.

What the host takes to start a prefill is fitted apart (``prefill_starts.py``).

Work is conserved, however clients bunch: with C prompts of I tokens and outputs of O under way, a
request takes ``C x + O d`` from arrival to end, in a closed loop and, on average over its length,
in a burst. While it runs, every client prefills once, at x seconds each, and it decodes O times, at
d seconds a step; both are steps of the cost model. Only fits use this form: what is judged goes
through ``twostroke simulate`` (``simulated.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log

from benchmarks.simulator.search import Space, search
from benchmarks.simulator.servers.measured import FRONT_END, ServingRow, waiting
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import Efficiencies, HostEfficiency, StepEfficiency
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.timing.step_shape import StepShape

BACKENDS = ("sglang", "trtllm", "vllm")
# Stacks whose host prepares the next step while the device runs, as they ship today.
OVERLAP = ("trtllm", "vllm")
# Stacks that prefill before they decode.
LOCKSTEP = ("sglang",)

HOST_SPACE: Space = {
    "step": (1e-3, 1e-5, 1e-2, 0.4),
    "request": (2e-5, 1e-6, 3e-4, 0.4),
}
STEP_SPACE: Space = {
    "decode": (1.05, 1.0, 1.3, 0.03),  # a step takes its kernels at least
    "prefill": (1.05, 0.7, 1.6, 0.04),
    "gap": (1e-5, 1e-7, 1e-4, 0.2),
}
# What a host time must gain in mean error to be larger than the least by a factor of e, and a
# stack's to leave that of all stacks by one. Where the device hides the host, nothing tells.
PULL = 0.01


@dataclass(frozen=True, slots=True)
class Stack:
    """What is fitted for a serving stack: its host, and what whole steps take beside kernels."""

    host: HostEfficiency
    step: StepEfficiency = field(default_factory=StepEfficiency)

    def as_measured(self, row: ServingRow) -> Stack:
        """This stack in the version and with the settings of a row."""
        return replace(self, host=replace(self.host, overlap=row.is_overlapped))


class Closed:
    """Times of requests in closed form. Keeps one cost model for each model, format and degree.

    Args:
        efficiencies: By serving stack, whose kernels differ.
    """

    def __init__(self, hardware: HardwareSheet, efficiencies: Mapping[str, Efficiencies]) -> None:
        self.hardware = hardware
        self.efficiencies = efficiencies
        self._models: dict[str, ModelSpec] = {}
        self._bases: dict[tuple[str, str, str, int, str], RooflineCostModel] = {}

    def cost_model(self, row: ServingRow, stack: Stack) -> RooflineCostModel:
        """The row's cost model under a stack's coefficients; kernel times are kept."""
        key = (row.backend, row.model, row.weights, row.ranks, row.kv_format)
        kernels = self.efficiencies[row.backend]
        base = self._bases.get(key)
        if base is None:
            model = self._models.setdefault(row.model, find_model(row.model))
            base = self._bases[key] = RooflineCostModel(
                self.hardware,
                model,
                Parallel(tensor=row.ranks, expert=row.experts_apart),
                Dtypes(weights=row.weights, kv_cache=row.kv_format),
                kernels,
            )
        base.efficiencies = replace(
            kernels,
            host=stack.as_measured(row).host,
            step=stack.step,
        )
        return base

    def seconds(self, row: ServingRow, stack: Stack) -> float:
        """From a request's arrival to its end, where all clients' requests run at once."""
        cost, clients = self.cost_model(row, stack), row.concurrency
        prompt, output = round(row.mean_share * row.input), row.mean_share * row.output
        context = round(clients * (prompt + output / 2))
        decode = cost.step(StepShape(clients, context, (), clients)).seconds
        group = max(1, min(clients, row.budget // prompt))
        beside = 0 if row.backend in LOCKSTEP else clients
        shape = StepShape(beside, context if beside else 0, ((prompt, 0),) * group, beside + group)
        prefill = (cost.step(shape).seconds - (decode if beside else 0.0)) / group
        return clients * prefill + output * decode


def fit_stacks(closed: Closed, rows: Sequence[ServingRow], rounds: int = 250) -> dict[str, Stack]:
    """Coefficients of every stack, those that have no rows included.

    They have the least mean of ``|log(estimated / measured)|`` of requests' times, over rows whose
    requests wait for nothing but prefill, and whose front end keeps up. What whole steps take is
    the device's, one for all stacks. Host times are fitted to all rows first; each stack's own may
    leave those as far as its rows insist (``PULL``).
    """
    free = [
        row for row, waits in zip(rows, waiting(rows)) if not waits and row.output_rate <= FRONT_END
    ]

    def shared_loss(values: dict[str, float]) -> float:
        pull = sum(log(values[name] / low) for name, (_, low, *_) in HOST_SPACE.items())
        return _loss(closed, free, {b: make_stack(b, values) for b in BACKENDS}) + PULL * pull

    shared = search(shared_loss, {**HOST_SPACE, **STEP_SPACE}, rounds)
    stacks = {}
    for backend in BACKENDS:
        own = [row for row in free if row.backend == backend]
        host = _fit_host(closed, own, shared, rounds) if own else {}
        stacks[backend] = make_stack(backend, {**shared, **host})
    return stacks


def make_stack(backend: str, values: Mapping[str, float]) -> Stack:
    """A stack from values of ``HOST_SPACE`` and ``STEP_SPACE``."""
    host = HostEfficiency(
        step=values["step"],
        request=values["request"],
        token=0.0,
        overlap=backend in OVERLAP,
    )
    return Stack(host, StepEfficiency(**{name: values[name] for name in STEP_SPACE}))


def _fit_host(
    closed: Closed, rows: Sequence[ServingRow], shared: Mapping[str, float], rounds: int
) -> dict[str, float]:
    backend = rows[0].backend

    def loss(values: dict[str, float]) -> float:
        pull = sum(abs(log(value / shared[name])) for name, value in values.items())
        stack = make_stack(backend, {**shared, **values})
        return _loss(closed, rows, {backend: stack}) + PULL * pull

    space: Space = {
        name: (shared[name], low, high, scale) for name, (_, low, high, scale) in HOST_SPACE.items()
    }
    return search(loss, space, rounds)


def _loss(closed: Closed, rows: Sequence[ServingRow], stacks: Mapping[str, Stack]) -> float:
    return sum(
        abs(log(closed.seconds(row, stacks[row.backend]) / row.seconds)) for row in rows
    ) / len(rows)


def stacks_without(
    closed: Closed, rows: Sequence[ServingRow], rounds: int = 250
) -> dict[str, dict[str, Stack]]:
    """Each model's stacks, fitted to the rows of all other models."""
    return {
        model: fit_stacks(closed, [row for row in rows if row.model != model], rounds)
        for model in sorted({row.model for row in rows})
    }
