"""Prefill and decode apart, by formulas: pairs of engines, and how many of each.

Prompts decide how many replicas compute them, answers how many write them, each by themselves at
about the rate that is to come; the cheapest pairs are then fitted together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.planner.apart.split_steady import Handover, SplitReplicas, split_steady
from twostroke.planner.engines import EngineChoice, devices_and_formats
from twostroke.planner.goals import Goal, shown_seconds
from twostroke.planner.options import numbers
from twostroke.planner.plan import Found, Plan, PromptReplicas
from twostroke.planner.progress import PlanProgress
from twostroke.planner.search import Search, spare_replicas
from twostroke.planner.steady import Steady, open_loop
from twostroke.simulator.deploy_pools import link_between
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.jumping.decode_curve import Bound

# Of engines of equal formats so many are paired, and of all pairs so many are fitted together.
MOST_OF_FORMATS, MOST_PAIRS = 5, 30
# Replicas that a pair begins with are so many times as many at each try.
GROWTH, MOST_GROWTHS = 1.25, 5
# Without a target for first tokens: the part of what can be computed that may come.
USUAL_LOAD = 0.9
# Where nothing says how fast answers come: seconds for each token.
USUAL_TPOT = 0.03
# More prompts at once than any step of usual length holds.
MOST_PROMPTS = 256


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """An engine for one of the two roles, and how many would do at about the rate that comes."""

    engine: EngineChoice
    replicas: int
    cost: float


class SplitSearch:
    """Finds the fewest replicas of pairs of engines.

    Attributes:
        misses: By role, the least that any engine takes where a target is out of reach for all.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.misses: dict[str, tuple[float, str]] = {}
        self._handovers: dict[tuple[object, ...], Handover | None] = {}

    def run(self, found: Found, progress: PlanProgress) -> None:
        """Add the plans of the cheapest pairs to ``found``, and sort it again."""
        rate = self._rate(found)
        families = list(devices_and_formats(self.search.builder))
        progress.begin("prefill, decode", len(families))
        pairs = self._pairs(families, rate, progress)
        progress.begin("pairs of both", len(pairs))
        for prompts, answers in pairs:
            progress.advance()
            bounds: tuple[tuple[Bound, list[Plan]], ...] = (
                ("high", found.plans),
                ("seconds", found.middle),
            )
            for bound, plans in bounds:
                plan = self.fewest(prompts.engine, answers.engine, bound, rate)
                if plan is not None:
                    plans.append(plan)
        found.plans.sort(key=self.search.order)
        found.middle.sort(key=self.search.order)
        found.evaluated = self.search.evaluated

    def fewest(
        self, prompts: EngineChoice, answers: EngineChoice, bound: Bound, rate: float
    ) -> Plan | None:
        """The plan with about the fewest replicas of both that meets the targets.

        Args:
            rate: Requests in a second, or about as many as users will make.
        """
        handover = self._handover(prompts, answers)
        if handover is None:
            return None
        of_prompts, of_answers = self._prompts(prompts, rate), self._answers(answers, rate)
        if of_prompts is None or of_answers is None:
            return None
        counts = [of_prompts.replicas, of_answers.replicas]

        def fits(x: int, y: int) -> bool:
            self.search.evaluated += 1
            state = self._state(prompts, x, answers, y, bound)
            return state is not None and self._meets(state[0], y)

        for _ in range(MOST_GROWTHS):
            if not self._allows(prompts, counts[0], answers, counts[1]):
                return None
            if fits(*counts):
                break
            counts = [ceil(GROWTH * count) for count in counts]
        else:
            return None
        dearer = int(of_answers.cost > of_prompts.cost)
        for index in (dearer, 1 - dearer):
            low, high = 0, counts[index]
            while high - low > 1:
                counts[index] = (low + high) // 2
                low, high = (low, counts[index]) if fits(*counts) else (counts[index], high)
            counts[index] = high
        plan = self.plan(prompts, counts[0], answers, counts[1])
        spare = plan.prompts.spare if plan.prompts else 0
        total = counts[0] + spare, counts[1] + plan.spare
        return plan if self._allows(prompts, total[0], answers, total[1]) else None

    def plan(self, prompts: EngineChoice, x: int, answers: EngineChoice, y: int) -> Plan:
        """A plan of so many replicas, whether it meets the targets or not."""
        builder, lengths = self.search.builder, self.search.traffic.lengths
        bounds: tuple[Bound, ...] = ("low", "seconds", "high")
        results = {bound: self._at_most(prompts, x, answers, y, bound) for bound in bounds}
        # Both pools are to be up at once.
        options = self.search.options
        if options.availability is not None:
            options = replace(options, availability=options.availability**0.5)
        sheets = builder.sheet(prompts.gpu), builder.sheet(answers.gpu)
        return Plan(
            engine=answers,
            replicas=y,
            spare=spare_replicas(y, options),
            states={bound: state for bound, (state, _) in results.items()},
            price=self.search.prices.price(sheets[1]),
            watts_of_one=sheets[1].power_watts,
            output=lengths.output,
            tokens=lengths.output + lengths.prompt,
            prompts=PromptReplicas(
                engine=prompts,
                replicas=x,
                spare=spare_replicas(x, options),
                price=self.search.prices.price(sheets[0]),
                watts_of_one=sheets[0].power_watts,
                loads={bound: load for bound, (_, load) in results.items()},
            ),
        )

    def state_of(self, plan: Plan, x: int, y: int, bound: Bound) -> Steady | None:
        """One replica that writes answers, were there so many of each; ``None``: too few."""
        assert plan.prompts is not None
        state = self._state(plan.prompts.engine, x, plan.engine, y, bound)
        return None if state is None else state[0]

    # ---- one pair ----------------------------------------------------------------------------

    def _state(
        self, prompts: EngineChoice, x: int, answers: EngineChoice, y: int, bound: Bound
    ) -> tuple[Steady, float] | None:
        builder, handover = self.search.builder, self._handover(prompts, answers)
        assert handover is not None
        replicas = SplitReplicas(
            builder.prompt_curve(prompts),
            x,
            builder.answer_curve(answers),
            y,
            builder.answer_limit(answers),
            handover,
        )
        return split_steady(replicas, self.search.traffic, bound)

    def _at_most(
        self, prompts: EngineChoice, x: int, answers: EngineChoice, y: int, bound: Bound
    ) -> tuple[Steady, float]:
        """Likewise, under less traffic if all of it is too much."""
        traffic, factor = self.search.traffic, 1.0
        while True:
            part = self if factor == 1 else SplitSearch(self.search.other(traffic.times(factor)))
            state = part._state(prompts, x, answers, y, bound)
            if state is not None:
                return state
            factor *= 0.9

    def _meets(self, state: Steady, y: int) -> bool:
        if state.misses(self.search.goals):
            return False
        wanted = self.search.options.throughput
        return wanted is None or state.rate * y * self.search.traffic.lengths.output >= wanted

    def _handover(self, prompts: EngineChoice, answers: EngineChoice) -> Handover | None:
        """``None`` where the two cannot hand on, or do not say how fast."""
        key = prompts, answers
        if key not in self._handovers:
            self._handovers[key] = self._make_handover(prompts, answers)
        return self._handovers[key]

    def _make_handover(self, prompts: EngineChoice, answers: EngineChoice) -> Handover | None:
        builder = self.search.builder
        options = FleetOptions(transfer_bandwidth=builder.search.transfer_bandwidth)
        try:
            sender, receiver = builder.deployment(prompts), builder.deployment(answers)
            link = link_between(options, sender, receiver)
        except (ConfigError, InsufficientMemoryError):
            return None
        info = receiver.info
        fresh = builder.lengths.fresh
        seconds, last = (
            ceil(tokens / info.block_size) * info.kv_groups.count * link.block_seconds
            for tokens in (fresh, min(fresh, prompts.budget))
        )
        return Handover(seconds, last, link.latency)

    def _allows(self, prompts: EngineChoice, x: int, answers: EngineChoice, y: int) -> bool:
        devices = Counter({prompts.gpu: x * prompts.num_devices})
        devices[answers.gpu] += y * answers.num_devices
        return self.search.allows(devices, x + y)

    # ---- which pairs -------------------------------------------------------------------------

    def _rate(self, found: Found) -> float:
        """Requests in a second; of users as many as the best plan so far lets them make."""
        traffic = self.search.traffic
        if traffic.users is None:
            return traffic.rate
        if plans := found.plans or found.middle:
            return plans[0].middle.rate * plans[0].replicas
        tpot = min((g.limit for g in self.search.goals if g.metric == "tpot"), default=USUAL_TPOT)
        return traffic.users / (traffic.think_time + tpot * traffic.lengths.output)

    def _pairs(
        self, families: Sequence[EngineChoice], rate: float, progress: PlanProgress
    ) -> list[tuple[PoolChoice, PoolChoice]]:
        """The cheapest pairs of equal formats, cheapest first."""
        of_prompts: defaultdict[object, list[PoolChoice]] = defaultdict(list)
        of_answers: defaultdict[object, list[PoolChoice]] = defaultdict(list)
        for engine in families:
            progress.advance()
            formats = engine.weights, engine.kv_cache
            for choices, best in (
                (of_prompts, self._best_prompts(engine, rate)),
                (of_answers, self._best_answers(engine, rate)),
            ):
                if best is not None:
                    choices[formats].append(best)
        pairs = [
            (first, second)
            for formats, firsts in of_prompts.items()
            for first in _cheapest(firsts)
            for second in _cheapest(of_answers[formats])
        ]
        # Sorting is stable, so that equal costs stay in the order of devices.
        pairs.sort(key=lambda pair: round(pair[0].cost + pair[1].cost, 6))
        return pairs[:MOST_PAIRS]

    def _best_prompts(self, engine: EngineChoice, rate: float) -> PoolChoice | None:
        search = self.search.builder.search
        budgets = numbers("--max-num-batched-tokens", search.max_num_batched_tokens, 1, 10_000_000)
        seqs = numbers("--max-num-seqs", search.max_num_seqs, 1, 100_000)
        most = max((count for count in seqs if count <= MOST_PROMPTS), default=seqs[0])
        choices = [
            self._prompts(replace(engine, budget=budget, seqs=most), rate) for budget in budgets
        ]
        return min(filter(None, choices), key=lambda choice: choice.cost, default=None)

    def _best_answers(self, engine: EngineChoice, rate: float) -> PoolChoice | None:
        search = self.search.builder.search
        budgets = numbers("--max-num-batched-tokens", search.max_num_batched_tokens, 1, 10_000_000)
        seqs = numbers("--max-num-seqs", search.max_num_seqs, 1, 100_000)
        # Decoding fills no budget: one that has room for every batch serves all of them.
        budget = next((each for each in budgets if each >= 2 * seqs[-1]), budgets[-1])
        choices = [
            self._answers(replace(engine, budget=budget, seqs=count), rate) for count in seqs
        ]
        return min(filter(None, choices), key=lambda choice: choice.cost, default=None)

    def _prompts(self, engine: EngineChoice, rate: float) -> PoolChoice | None:
        """The fewest replicas that compute prompts in time."""
        try:
            self.search.builder.deployment(engine)
        except InsufficientMemoryError:
            return None
        curve = self.search.builder.prompt_curve(engine)
        goals = [goal for goal in self.search.goals if goal.metric == "ttft"]

        def is_enough(count: int) -> bool:
            spread = curve.first_token(rate / count, "high")
            if spread is None:
                return False
            if not goals:
                return curve.load(rate / count, "high") <= USUAL_LOAD
            return all(spread.at(goal.percentile) <= goal.limit for goal in goals)

        alone = curve.first_token(0.0, "high")
        assert alone is not None
        for goal in goals:
            if self._is_missed("prefill", engine, goal, alone.at(goal.percentile)):
                return None
        return self._fewest_of_one(engine, is_enough)

    def _answers(self, engine: EngineChoice, rate: float) -> PoolChoice | None:
        """The fewest replicas that write answers fast enough."""
        try:
            limit = self.search.builder.answer_limit(engine)
        except InsufficientMemoryError:
            return None
        if not limit:
            return None
        curve = self.search.builder.answer_curve(engine)
        goals = [goal for goal in self.search.goals if goal.metric == "tpot"]

        def is_enough(count: int) -> bool:
            state = open_loop(curve, limit, rate / count, "high")
            return state is not None and not state.misses(tuple(goals))

        alone = open_loop(curve, limit, 1e-9, "high")
        for goal in goals:
            seconds = inf if alone is None else alone.tpot.at(goal.percentile)
            if self._is_missed("decode", engine, goal, seconds):
                return None
        return self._fewest_of_one(engine, is_enough)

    def _is_missed(self, role: str, engine: EngineChoice, goal: Goal, seconds: float) -> bool:
        """Whether a target is out of reach; remembers what comes nearest."""
        ratio = seconds / goal.limit
        if ratio > 1 and ratio < self.misses.get(role, (inf, ""))[0]:
            text = f"{role}: {goal.name} {shown_seconds(seconds)} at best, target"
            text += f" {shown_seconds(goal.limit)} ({engine.describe()})"
            self.misses[role] = ratio, text
        return ratio > 1

    def _fewest_of_one(
        self, engine: EngineChoice, is_enough: Callable[[int], bool]
    ) -> PoolChoice | None:
        low, high, most = 0, 1, self.search.builder.search.max_replicas
        while high < most and not is_enough(high):
            self.search.evaluated += 1
            low, high = high, min(2 * high, most)
        if not is_enough(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            self.search.evaluated += 1
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        price = self.search.prices.price(self.search.builder.sheet(engine.gpu)).per_hour
        return PoolChoice(engine, high, high * engine.num_devices * price)


def _cheapest(choices: list[PoolChoice]) -> list[PoolChoice]:
    """The cheapest few, and the cheapest of each device."""
    ranked = sorted(choices, key=lambda choice: round(choice.cost, 6))
    kept = ranked[:MOST_OF_FORMATS]
    devices = {choice.engine.gpu for choice in kept}
    for choice in ranked[MOST_OF_FORMATS:]:
        if choice.engine.gpu not in devices:
            devices.add(choice.engine.gpu)
            kept.append(choice)
    return kept


def can_be_apart(search: Search) -> bool:
    """Whether prefill and decode apart is searched, and the model's cache can move.

    Raises:
        ConfigError: It is all that is wanted, and cannot be.
    """
    pools, builder = search.builder.search.pools, search.builder
    can_move = not builder.spec.state_bytes(1)
    if pools == "apart" and not can_move:
        raise ConfigError(
            f"{builder.model} has recurrent layers, whose states are not handed on",
            hint="give --pools together",
        )
    return pools != "together" and can_move


def state_of(search: Search, plan: Plan, replicas: int, bound: Bound = "high") -> Steady | None:
    """One replica of a plan, were there so many that write answers; ``None``: too few."""
    if plan.prompts is None:
        return search.at(plan, replicas, bound)
    return SplitSearch(search).state_of(plan, plan.prompts.replicas, replicas, bound)


def resized(search: Search, plan: Plan, factor: float) -> Plan:
    """The plan with ``factor`` times its replicas, of both kinds."""
    replicas = max(1, round(plan.replicas * factor))
    if plan.prompts is None:
        spare = spare_replicas(replicas, search.options)
        return search.plan(plan.engine, replicas, spare, search.limit(plan.engine))
    prompts = max(1, round(plan.prompts.replicas * factor))
    return SplitSearch(search).plan(plan.prompts.engine, prompts, plan.engine, replicas)
