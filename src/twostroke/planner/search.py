"""All engines by formulas: the fewest replicas of each that meet the targets, and why others fail.

Every engine is tried at the middle of the cost model's interval and at its pessimistic end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, comb

from twostroke.core.errors import InsufficientMemoryError
from twostroke.planner.engines import EngineBuilder, EngineChoice, at_hand
from twostroke.planner.goals import Goal
from twostroke.planner.options import GoalOptions
from twostroke.planner.plan import Found, Plan, Shortfall
from twostroke.planner.prices import PriceList
from twostroke.planner.steady import Steady, closed_loop, open_loop
from twostroke.planner.traffic import Traffic
from twostroke.simulator.jumping.decode_curve import Bound


class Search:
    """Finds the fewest replicas of engines.

    Args:
        options: Throughput and availability that are asked for.
    """

    def __init__(
        self,
        builder: EngineBuilder,
        traffic: Traffic,
        goals: tuple[Goal, ...],
        options: GoalOptions,
        prices: PriceList,
    ) -> None:
        self.builder, self.traffic, self.goals = builder, traffic, goals
        self.options, self.prices = options, prices
        self._at_hand = at_hand(builder.search)
        self._limits: dict[EngineChoice, float] = {}
        self.evaluated = 0

    def run(
        self, engines: Iterable[EngineChoice], advance: Callable[[], None] = lambda: None
    ) -> Found:
        """Try every engine."""
        found = Found()
        for engine in engines:
            advance()
            result = self.fewest(engine, "high")
            upper = None
            if isinstance(result, Plan):
                found.plans.append(result)
                upper = result.replicas
            else:
                _keep_nearest(found.failures, result)
                if result.kind in ("memory", "limits"):
                    continue
            if upper != 1:
                result = self.fewest(engine, "seconds", upper)
            if isinstance(result, Plan):
                found.middle.append(result)
        found.plans.sort(key=self.order)
        found.middle.sort(key=self.order)
        found.evaluated = self.evaluated
        return found

    def order(self, plan: Plan) -> tuple[object, ...]:
        """Cost first, then devices, then how far the targets are kept, then names."""
        e = plan.engine
        tight = plan.states["high"].tightness(self.goals)
        return (
            round(plan.cost_per_hour, 6),
            # Formats that save nothing are not worth other answers.
            (e.weights != self.builder.spec.format) + (e.kv_cache != "bf16"),
            plan.devices,
            plan.prompts is not None,
            round(tight, 3),
            round(plan.middle.tpot.at(95), 5),
            e.gpu,
            (e.tp, e.dp, e.pp, e.ep),
            () if plan.prompts is None else plan.prompts.engine.order,
            e.weights,
            e.kv_cache,
            e.drafts,
            e.seqs,
            e.budget,
        )

    def fewest(
        self, engine: EngineChoice, bound: Bound, upper: int | None = None
    ) -> Plan | Shortfall:
        """The plan with the fewest replicas that meets the targets at one end of the interval.

        Args:
            upper: A number of replicas that is enough.
        """
        try:
            limit = self.limit(engine)
        except InsufficientMemoryError as error:
            return Shortfall("memory", 1e9 / engine.num_devices, engine, error.message)
        if not limit:
            return Shortfall("limits", 1e8, engine, "the token budget leaves no room for a prompt")
        most, why = self.most_replicas(engine)
        if most < 1:
            return Shortfall("limits", 1e7, engine, why)

        def fits(replicas: int) -> bool:
            self.evaluated += 1
            return self._meets(self._state(engine, limit, replicas, bound), replicas)

        if upper is None and not fits(most):
            return self._failure(engine, limit, most, bound, why)
        most = upper or most
        low, high = 0, min(self._least_replicas(engine, limit, bound), most)
        while high < most and not fits(high):
            low, high = high, min(max(high + 1, round(1.6 * high)), most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        spare = spare_replicas(high, self.options)
        if upper is None and high + spare > most:
            return Shortfall("limits", 1e6, engine, f"{high} replicas and {spare} spare: {why}")
        return self.plan(engine, high, spare, limit)

    def plan(self, engine: EngineChoice, replicas: int, spare: int, limit: float) -> Plan:
        """A plan of so many replicas, whether it meets the targets or not."""
        sheet, lengths = self.builder.sheet(engine.gpu), self.traffic.lengths
        states: dict[Bound, Steady] = {}
        bounds: tuple[Bound, ...] = ("low", "seconds", "high")
        for bound in bounds:
            state = self._state(engine, limit, replicas, bound)
            # At the middle's plan the pessimistic end may be overloaded: then it runs full.
            states[bound] = state or self._full(engine, limit, bound)
        return Plan(
            engine=engine,
            replicas=replicas,
            spare=spare,
            states=states,
            price=self.prices.price(sheet),
            watts_of_one=sheet.power_watts,
            output=lengths.output,
            tokens=lengths.output + lengths.prompt,
        )

    def limit(self, engine: EngineChoice) -> float:
        """Most requests that decode at once; 0: the token budget leaves no room for a prompt.

        Raises InsufficientMemoryError.
        """
        if engine not in self._limits:
            limit = self.builder.most_running(self.builder.deployment(engine))
            curve = self.builder.curve(engine)
            curve.reach(limit)
            self._limits[engine] = min(limit, float(curve.most))
        return self._limits[engine]

    def at(self, plan: Plan, replicas: int, bound: Bound = "high") -> Steady | None:
        """One replica of a plan, were there so many."""
        return self._state(plan.engine, self.limit(plan.engine), replicas, bound)

    def other(self, traffic: Traffic | None = None, goals: Sequence[Goal] | None = None) -> Search:
        """A search for other traffic of the same lengths, or for other goals."""
        traffic = traffic or self.traffic
        goals = self.goals if goals is None else tuple(goals)
        search = Search(self.builder, traffic, goals, self.options, self.prices)
        search._limits = self._limits
        return search

    def _state(
        self, engine: EngineChoice, limit: float, replicas: int, bound: Bound
    ) -> Steady | None:
        curve, traffic = self.builder.curve(engine), self.traffic
        if traffic.users is None:
            return open_loop(curve, limit, traffic.rate / replicas, bound)
        return closed_loop(curve, limit, traffic.users / replicas, traffic.think_time, bound)

    def _full(self, engine: EngineChoice, limit: float, bound: Bound) -> Steady:
        curve = self.builder.curve(engine)
        rate = 0.999 * curve.at(limit, bound).rate
        state = open_loop(curve, limit, rate, bound)
        assert state is not None
        return state

    def _meets(self, state: Steady | None, replicas: int) -> bool:
        if state is None or state.misses(self.goals):
            return False
        wanted = self.options.throughput
        tokens = state.rate * replicas * self.traffic.lengths.output
        return wanted is None or tokens >= wanted

    def _least_replicas(self, engine: EngineChoice, limit: float, bound: Bound) -> int:
        if self.traffic.users is not None:
            return 1
        most = self.builder.curve(engine).at(limit, bound).rate
        return max(1, ceil(self.traffic.rate / most))

    def most_replicas(self, engine: EngineChoice) -> tuple[int, str]:
        """How many the limits allow, and which limit that is."""
        search, sheet = self.builder.search, self.builder.sheet(engine.gpu)
        limits = [(search.max_replicas, f"--max-replicas {search.max_replicas}")]
        if self._at_hand:
            have = self._at_hand.get(engine.gpu, 0)
            limits.append((have // engine.num_devices, f"{have} are at hand"))
        price = self.prices.price(sheet).per_hour * engine.num_devices
        if search.budget is not None and price:
            why = f"--budget {search.budget:g}, a replica costs ${price:,.2f} an hour"
            limits.append((int(search.budget / price), why))
        watts = sheet.power_watts * engine.num_devices
        if search.max_watts is not None and watts:
            why = f"--max-watts {search.max_watts:g}, a replica takes {watts:,.0f}"
            limits.append((int(search.max_watts / watts), why))
        return min(limits)

    def allows(self, devices: Mapping[str, int], replicas: int) -> bool:
        """Whether the limits allow so many devices of each kind, and so many replicas."""
        search = self.builder.search
        sheets = {gpu: self.builder.sheet(gpu) for gpu in devices}
        prices = {gpu: self.prices.price(sheet).per_hour for gpu, sheet in sheets.items()}
        dollars = sum(count * prices[gpu] for gpu, count in devices.items())
        watts = sum(count * sheets[gpu].power_watts for gpu, count in devices.items())
        there_are = not self._at_hand or all(
            count <= self._at_hand.get(gpu, 0) for gpu, count in devices.items()
        )
        return (
            there_are
            and replicas <= search.max_replicas
            and (search.budget is None or dollars <= search.budget)
            and (search.max_watts is None or watts <= search.max_watts)
        )

    def _failure(
        self, engine: EngineChoice, limit: float, most: int, bound: Bound, why: str
    ) -> Shortfall:
        state = self._state(engine, limit, most, bound)
        if state is None:
            cap = self.builder.curve(engine).at(limit, bound).rate
            distance = self.traffic.rate / (cap * most)
            text = f"{most} replicas end {cap * most:.3g} of {self.traffic.rate:.3g} requests/s"
            return Shortfall("overload", 1e3 + distance, engine, f"{text} ({why})", replicas=most)
        missed = state.misses(self.goals)
        if not missed:
            tokens = state.rate * most * self.traffic.lengths.output
            text = f"{most} replicas give {tokens:,.0f} tokens/s ({why})"
            return Shortfall("overload", 1e3, engine, text, replicas=most)
        goal = max(missed, key=lambda g: state.time(g.metric, g.percentile) / g.limit)
        tight = state.time(goal.metric, goal.percentile) / goal.limit
        return Shortfall("goal", tight, engine, why, goal, state, most)


def spare_replicas(needed: int, options: GoalOptions) -> int:
    """How many more it takes, so that enough are up for the wanted share of time.

    Replicas fail one by one, each is up for ``--replica-availability`` of the time.
    """
    if options.availability is None:
        return 0
    up, spare = options.replica_availability, 0
    while spare < needed + 100:
        total = needed + spare
        enough = sum(
            comb(total, down) * (1 - up) ** down * up ** (total - down) for down in range(spare + 1)
        )
        if enough >= options.availability:
            return spare
        spare += 1
    return spare


def _keep_nearest(failures: dict[str, Shortfall], failure: Shortfall) -> None:
    gpu = failure.engine.gpu
    if gpu not in failures or failure.distance < failures[gpu].distance:
        failures[gpu] = failure
