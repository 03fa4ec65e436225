"""What a search comes to: plans, and why other engines are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twostroke.planner.engines import EngineChoice
from twostroke.planner.goals import Goal
from twostroke.planner.prices import DevicePrice
from twostroke.planner.proof import Proof
from twostroke.planner.steady import Steady
from twostroke.simulator.jumping.decode_curve import Bound

HOURS_OF_A_SECOND = 1 / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReplicas:
    """Replicas that compute prompts, for others that write the answers.

    Attributes:
        loads: Part of what each could compute, at each end of the cost model's interval.
    """

    engine: EngineChoice
    replicas: int
    spare: int
    price: DevicePrice
    watts_of_one: float
    loads: dict[Bound, float]

    @property
    def devices(self) -> int:
        return self.engine.num_devices * (self.replicas + self.spare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An engine, so many of it, and what they do under the traffic.

    Attributes:
        replicas: Those that the traffic needs; ``spare`` come on top for availability.
        states: One replica at each end of the cost model's interval.
        prompts: Replicas beside these that compute their prompts; then these only decode.
        proof: Simulations, if there were any.
    """

    engine: EngineChoice
    replicas: int
    spare: int
    states: dict[Bound, Steady]
    price: DevicePrice
    watts_of_one: float
    output: float
    tokens: float
    prompts: PromptReplicas | None = None
    proof: Proof | None = None

    @property
    def devices(self) -> int:
        own = self.engine.num_devices * (self.replicas + self.spare)
        return own if self.prompts is None else own + self.prompts.devices

    @property
    def devices_by_gpu(self) -> dict[str, int]:
        """How many of each device; those that compute prompts come first."""
        prompts, gpu = self.prompts, self.engine.gpu
        counts = {} if prompts is None else {prompts.engine.gpu: prompts.devices}
        counts[gpu] = counts.get(gpu, 0) + self.engine.num_devices * (self.replicas + self.spare)
        return counts

    @property
    def gpus_text(self) -> str:
        """The kinds of devices."""
        return " and ".join(self.devices_by_gpu)

    @property
    def replicas_in_all(self) -> int:
        prompts = self.prompts
        own = self.replicas + self.spare
        return own if prompts is None else own + prompts.replicas + prompts.spare

    @property
    def family(self) -> tuple[object, ...]:
        """What decides the cost models: plans of one family differ in limits and numbers alone."""
        prompts = self.prompts
        return self.engine.memory_key, None if prompts is None else prompts.engine.memory_key

    @property
    def devices_text(self) -> str:
        """The devices of a replica; of both kinds, if prompts are computed apart."""
        if self.prompts is None:
            return self.engine.devices_text
        return f"{self.prompts.engine.devices_text} : {self.engine.devices_text}"

    @property
    def replicas_text(self) -> str:
        """How many replicas, ``+`` spare ones; prefill and decode as a ratio."""
        pools = (self,) if self.prompts is None else (self.prompts, self)
        return " : ".join(
            f"{pool.replicas}+{pool.spare}" if pool.spare else f"{pool.replicas}" for pool in pools
        )

    @property
    def short_text(self) -> str:
        """How many replicas of which devices."""
        pools = (self,) if self.prompts is None else (self.prompts, self)
        return " : ".join(
            f"{pool.replicas + pool.spare} x {pool.engine.devices_text}" for pool in pools
        )

    def describe(self) -> str:
        """How many of what."""
        count = self.replicas + self.spare
        if self.prompts is None:
            return f"{count} replica{'s' if count > 1 else ''} of {self.engine.describe()}"
        prompts, rest = self.prompts, self.engine.formats_text
        return (
            f"{prompts.replicas + prompts.spare} prefill x {prompts.engine.devices_text} and"
            f" {count} decode x {self.engine.devices_text}, {rest}"
        )

    @property
    def cost_per_hour(self) -> float:
        prompts = self.prompts
        other = 0.0 if prompts is None else prompts.devices * prompts.price.per_hour
        return self.engine.num_devices * (self.replicas + self.spare) * self.price.per_hour + other

    @property
    def watts(self) -> float:
        """At the devices' rated power."""
        prompts = self.prompts
        other = 0.0 if prompts is None else prompts.devices * prompts.watts_of_one
        return self.engine.num_devices * (self.replicas + self.spare) * self.watts_of_one + other

    @property
    def middle(self) -> Steady:
        return self.states["seconds"]

    @property
    def output_throughput(self) -> float:
        """Output tokens per second, of all replicas."""
        return self.middle.rate * self.replicas * self.output

    @property
    def cost_per_million(self) -> float:
        """US dollars for a million tokens, of prompts and answers together."""
        tokens = self.middle.rate * self.replicas * self.tokens / HOURS_OF_A_SECOND
        return 1e6 * self.cost_per_hour / tokens if tokens else 0.0

    def times(self, goal: Goal) -> tuple[float, float, float]:
        """The low end, the middle and the high end: simulated if there is a proof."""
        if self.proof is not None:
            figure = self.proof.time(goal.metric, goal.percentile)
            return figure.low, figure.middle, figure.high
        low, middle, high = (
            self.states[bound].time(goal.metric, goal.percentile)
            for bound in ("low", "seconds", "high")
        )
        return low, middle, high


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The best that a device can do, and what it falls short of.

    Attributes:
        kind: ``memory``, ``limits``, ``overload`` or ``goal``.
        distance: How far from enough; the smallest of a device is kept.
        text: The reason, if no goal is missed.
    """

    kind: str
    distance: float
    engine: EngineChoice
    text: str = ""
    goal: Goal | None = None
    state: Steady | None = None
    replicas: int = 0


@dataclass(slots=True)
class Found:
    """What a search came to.

    Attributes:
        plans: For each engine that can, ranked by cost at the pessimistic end.
        middle: Likewise at the middle of the interval.
        failures: By device, why its best engine fails.
        evaluated: Candidates: an engine with a number of replicas.
        misses_apart: Targets that no engine reaches that only computes prompts, or only decodes.
    """

    plans: list[Plan] = field(default_factory=list)
    middle: list[Plan] = field(default_factory=list)
    failures: dict[str, Shortfall] = field(default_factory=dict)
    evaluated: int = 0
    misses_apart: list[str] = field(default_factory=list)


def distinct(plans: Sequence[Plan]) -> list[Plan]:
    """The best plan of each device, number of devices and formats, in order."""
    best: dict[object, Plan] = {}
    for plan in plans:
        best.setdefault(plan.family, plan)
    return list(best.values())


def with_proof(plan: Plan, proof: Proof) -> Plan:
    return replace(plan, proof=proof)
