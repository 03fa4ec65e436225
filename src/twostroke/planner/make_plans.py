"""The whole answer: search by formulas, prove the best few, explain, and vary the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from twostroke.core.errors import ConfigError
from twostroke.model_spec.public_models import find_model
from twostroke.planner.apart.split_search import SplitSearch, can_be_apart, resized, state_of
from twostroke.planner.engines import EngineBuilder, engines
from twostroke.planner.goals import Goal, parse_goals
from twostroke.planner.memory_table import MemoryTable, memory_tables
from twostroke.planner.options import GoalOptions, PlanOutputOptions, SearchOptions, TrafficOptions
from twostroke.planner.plan import Found, Plan, distinct, with_proof
from twostroke.planner.prices import GUESSED, PriceList
from twostroke.planner.progress import PlanProgress
from twostroke.planner.proof import Proof, Prover
from twostroke.planner.reasons import Binding, Lever, binding, lever
from twostroke.planner.rejections import other_pools, rejections
from twostroke.planner.search import Search
from twostroke.planner.traffic import Traffic, read_traffic
from twostroke.planner.what_if import FrontPoint, Variation, front, variations
from twostroke.simulator.cost.told_sources import describe_sources

# Plans whose simulations ask for more replicas than the formulas: how often more are tried, and
# how many plans beyond those asked for, where one became dearer than the next.
MOST_TRIES, MOST_EXTRA = 4, 5
BLOCK = 16
# In the table, of one device.
MOST_OF_A_DEVICE = 2


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan with its reasons."""

    plan: Plan
    binding: Binding
    lever: Lever | None


@dataclass(frozen=True, slots=True)
class Planned:
    """What ``twostroke plan`` answers.

    Attributes:
        shown: The best plans at the pessimistic end, ranked by cost.
        middle: The cheapest at the middle of the interval, by formulas.
        rejected: By device, why it is not the best plan's.
        other_pools: What it would be with prefill and decode apart, or together.
        memory: What the best plan's devices hold, by title.
        front: Cost against speed.
        variations: Other questions, and their answers.
        notes: Sentences on what was assumed, and on what a reader might miss.
    """

    model: str
    search: Search
    found: Found
    shown: list[ShownPlan]
    middle: Plan | None
    rejected: dict[str, str]
    other_pools: str
    memory: dict[str, MemoryTable]
    front: list[FrontPoint]
    variations: list[Variation]
    notes: tuple[str, ...]

    @property
    def best(self) -> ShownPlan | None:
        return self.shown[0] if self.shown else None

    @property
    def goals(self) -> tuple[Goal, ...]:
        return self.search.goals

    @property
    def traffic(self) -> Traffic:
        return self.search.traffic


def make_plans(
    model: str,
    traffic_options: TrafficOptions,
    goal_options: GoalOptions,
    search_options: SearchOptions,
    output: PlanOutputOptions,
    progress: PlanProgress,
) -> Planned:
    """Plan.

    Raises:
        ConfigError: Something that was given is unknown, or contradicts itself.
        ModelLoadError: The model is unknown.
    """
    goals = parse_goals(goal_options)
    longest = search_options.max_model_len or find_model(model).context_length
    traffic = read_traffic(traffic_options, longest)
    search = make_search(model, traffic, goals, goal_options, search_options)
    candidates, are_apart = list(engines(search.builder)), can_be_apart(search)
    if not candidates:
        asked = f"--tp {search_options.tp} and --pp {search_options.pp}"
        raise ConfigError(
            f"no device shares {model} as {asked} say",
            hint="give --tp other numbers: they must divide the model's heads",
        )
    progress.begin("formulas", len(candidates))
    found = search.run(candidates, progress.advance)
    if are_apart:
        _search_apart(search, found, progress)
    plans = distinct(found.plans)
    plans = prove_best(search, plans, output, progress)
    shown = [
        ShownPlan(plan, binding(search, plan), lever(search, plan))
        for plan in varied(plans, output.top)
    ]
    middle = distinct(found.middle)[0] if found.middle else None
    best = shown[0].plan if shown else None
    return Planned(
        model=model,
        search=search,
        found=found,
        shown=shown,
        middle=middle,
        rejected=rejections(search, plans, found, best),
        other_pools=other_pools(search, plans, found.misses_apart, best),
        memory={} if best is None else memory_tables(search, best),
        front=front(search, found, 0.0 if best is None else best.cost_per_hour),
        variations=variations(search, found),
        notes=_notes(search, goal_options, best),
    )


def _search_apart(search: Search, found: Found, progress: PlanProgress) -> None:
    """Add plans whose prompts are computed apart, or leave only them if that is asked for."""
    together = found.plans, found.middle
    apart = SplitSearch(search)
    apart.run(found, progress)
    found.misses_apart = [text for _, text in apart.misses.values()]
    if search.builder.search.pools == "apart":
        found.plans, found.middle = (
            [plan for plan in plans if plan.prompts is not None] for plans in together
        )


def nearest_miss(planned: Planned) -> str:
    """How near the best device comes to the targets, in a few words."""
    if planned.found.plans:
        return "formulas find some, simulations do not keep to them (--simulate 0 shows them)"
    failures = planned.found.failures
    nearest = min(failures, key=lambda gpu: failures[gpu].distance, default=None)
    if nearest is None:
        return "no device was tried"
    return f"the nearest is {nearest}: {planned.rejected[nearest]}"


def make_search(
    model: str,
    traffic: Traffic,
    goals: tuple[Goal, ...],
    goal_options: GoalOptions,
    search_options: SearchOptions,
) -> Search:
    """A search; requests may be as long as the traffic's longest, unless a length is given."""
    longest = traffic.lengths.longest
    length = search_options.max_model_len or ceil(longest / BLOCK) * BLOCK
    if length < longest:
        raise ConfigError(
            f"--max-model-len {length} is less than the traffic's longest request, {longest:,}",
            hint="give a larger one, or leave it out",
        )
    builder = EngineBuilder(model, search_options, traffic.lengths, length)
    context = builder.spec.context_length
    if longest > context:
        raise ConfigError(
            f"the traffic's longest request has {longest:,} tokens, {model} takes {context:,}",
            hint="give shorter lengths (--input, --input-p95, --output, --output-p95)",
        )
    prices = PriceList(search_options.prices)
    if goal_options.throughput is not None and traffic.users is None:
        tokens = traffic.rate * traffic.lengths.output
        if tokens < goal_options.throughput:
            raise ConfigError(
                f"the traffic asks for {tokens:,.0f} output tokens/s, less than --throughput"
                f" {goal_options.throughput:,.0f}",
                hint="give a higher --rate, or leave out --throughput",
            )
    return Search(builder, traffic, goals, goal_options, prices)


def prove_best(
    search: Search, plans: Sequence[Plan], output: PlanOutputOptions, progress: PlanProgress
) -> list[Plan]:
    """Simulate the best plans, with more or fewer replicas where the simulations say so.

    Returns:
        Those that were simulated and meet the targets, and those that cost as much or more by
            formulas; ranked by cost.
    """
    if not output.simulate or not plans:
        return list(plans)
    progress.begin("simulations", min(output.simulate, len(plans)) * 4 * output.seeds)
    proven: list[Plan] = []
    rest = list(plans)
    tried = 0
    while rest and tried < output.simulate + MOST_EXTRA:
        cheapest = min((plan.cost_per_hour for plan in proven), default=float("inf"))
        if tried >= output.simulate and proven and rest[0].cost_per_hour >= cheapest:
            break
        tried += 1
        settled = settle(search, rest.pop(0), output.seeds, progress.advance)
        if settled is not None:
            proven.append(settled)
    # A plan that formulas alone call cheaper is no answer: so did those that were simulated.
    cheapest = min((plan.cost_per_hour for plan in proven), default=0.0)
    rest = [plan for plan in rest if plan.cost_per_hour >= cheapest]
    if not proven:
        return []
    return sorted(
        proven + rest,
        key=lambda plan: (round(plan.cost_per_hour, 6), plan.proof is None, search.order(plan)),
    )


def varied(plans: Sequence[Plan], count: int) -> list[Plan]:
    """The first plans, few of one device as long as there are others; in their order."""
    of_device: dict[str, int] = {}
    first: list[int] = []
    later: list[int] = []
    for number, plan in enumerate(plans):
        seen = of_device[plan.engine.gpu] = of_device.get(plan.engine.gpu, 0) + 1
        (first if seen <= MOST_OF_A_DEVICE else later).append(number)
    return [plans[number] for number in sorted((first + later)[:count])]


def settle(search: Search, plan: Plan, seeds: int, advance: Callable[[], None]) -> Plan | None:
    """The plan with the fewest replicas with which simulations meet the targets.

    Of two pools the ratio stays as it is, nearly.

    Returns:
        ``None`` if a few replicas more do not do it either.
    """
    step = max(1, round(0.05 * plan.replicas))
    enough: tuple[Plan, Prover] | None = None
    current, is_less = plan, True
    for _ in range(MOST_TRIES):
        prover = _prover(search, current, seeds, advance)
        proof = prover.at("high")
        if proof.meets(search.goals, pessimistic=True) and _gives(search, proof, current.replicas):
            enough = current, prover
            change = -step if is_less else 0
        else:
            is_less = False
            if enough is not None:
                break
            change = step
        replicas = current.replicas + change
        if not change or replicas < 1:
            break
        current = resized(search, plan, replicas / plan.replicas)
        if not search.allows(current.devices_by_gpu, current.replicas_in_all):
            break
    if enough is None:
        return None
    settled, prover = enough
    return with_proof(settled, prover.at("low", "seconds", "high"))


def _prover(search: Search, plan: Plan, seeds: int, advance: Callable[[], None]) -> Prover:
    state, prompts = state_of(search, plan, plan.replicas, "seconds"), plan.prompts
    running = plan.middle.limit if state is None else state.running
    return Prover(
        search.builder,
        plan.engine,
        plan.replicas,
        search.traffic,
        running,
        seeds,
        advance,
        None if prompts is None else (prompts.engine, prompts.replicas),
    )


def _gives(search: Search, proof: Proof, replicas: int) -> bool:
    """Whether the throughput that was asked for is reached at the pessimistic end."""
    wanted = search.options.throughput
    if wanted is None or search.traffic.users is None:
        return True
    rate = min(run.rate for run in proof.runs["high"]) * replicas / proof.simulated_replicas
    return rate * search.traffic.lengths.output >= wanted


def _notes(search: Search, options: GoalOptions, best: Plan | None) -> tuple[str, ...]:
    notes = list(search.traffic.notes)
    if not search.goals and options.throughput is None:
        notes.append("no target is given, so the cheapest that keeps up is best: --ttft, --tpot")
    if best is None:
        return tuple(notes)
    if best.price.source == GUESSED:
        notes.append(f"the price of {best.engine.gpu} is a guess: --prices FILE")
    if not best.price.per_hour:
        notes.append(f"{best.engine.gpu} has no price, so it seems to cost nothing: --prices FILE")
    if best.engine.weights in ("int4", "nvfp4", "mxfp4") and (
        best.engine.weights != search.builder.spec.format
    ):
        notes.append(f"{best.engine.weights} weights change answers: measure what they cost you")
    notes.append(f"step times: {describe_sources(search.builder.cost(best.engine))}")
    return tuple(dict.fromkeys(notes))
