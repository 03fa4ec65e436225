"""Why a plan is as it is: what binds it, and what would help.

Each sentence has the numbers that it stands on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.planner.apart.split_search import SplitSearch
from twostroke.planner.engines import EngineChoice
from twostroke.planner.goals import Goal, shown_seconds
from twostroke.planner.plan import Plan, PromptReplicas
from twostroke.planner.search import Search
from twostroke.planner.steady import Steady
from twostroke.planner.step_curve import DraftSetting
from twostroke.simulator.cost.configuration import Dtypes
from twostroke.simulator.cost.expert_parallel import batch_of_stage, share_of_group
from twostroke.simulator.cost.step_counts import StepCounts
from twostroke.timing.step_shape import StepShape

# What the cost model says a step waits for, in the words of who buys hardware.
RESOURCES = {
    "memory": "memory bandwidth",
    "compute": "compute",
    "communication": "network",
    "launch": "host",
    "host": "host",
}
MEMORY, SCHEDULER = "memory capacity", "scheduler limits"
ROLES = ("prefill", "decode")
# The batch at half its limit ends nearly as many requests: more room would not help.
SATURATED = 0.93
# Levers beyond what was searched; the share of right drafts is a guess.
USUAL_ACCEPTANCE, USUAL_DRAFTS = 0.7, 3


@dataclass(frozen=True, slots=True)
class Binding:
    """What a plan would fall short of first."""

    constraint: str
    text: str


@dataclass(frozen=True, slots=True)
class Lever:
    """What would change a plan most, and to what."""

    change: str
    effect: str
    plan: Plan


def binding(search: Search, plan: Plan) -> Binding:
    """What keeps a plan from one replica fewer, or else the target that it is nearest to."""
    state, goals = plan.states["high"], search.goals
    if plan.prompts is not None:
        return _binding_of_pools(search, plan, plan.prompts)
    if plan.replicas > 1:
        fewer = search.at(plan, plan.replicas - 1)
        rest = plan.replicas - 1
        label = f"with {rest} replica{'' if rest == 1 else 's'}"
        if fewer is None:
            return _overload(search, plan, label)
        missed = fewer.misses(goals)
        if missed:
            goal = max(missed, key=lambda g: fewer.time(g.metric, g.percentile) / g.limit)
            return _of_goal(search, plan.engine, fewer, goal, label)
        if search.options.throughput is not None:
            tokens = fewer.rate * (plan.replicas - 1) * plan.output
            constraint, text = waits_for(search, plan.engine, fewer, prompts=False)
            return Binding(constraint, f"{label} {tokens:,.0f} output tokens/s; {text}")
    if not goals:
        constraint, text = waits_for(search, plan.engine, state, prompts=False)
        return Binding(constraint, text)
    goal = max(goals, key=lambda g: plan.times(g)[2] / g.limit)
    return _of_goal(
        search, plan.engine, state, goal, "at the pessimistic end", time=plan.times(goal)[2]
    )


def _binding_of_pools(search: Search, plan: Plan, prompts: PromptReplicas) -> Binding:
    """What gives way with one replica fewer of the dearer pool, else of the other."""
    apart, counts = SplitSearch(search), (prompts.replicas, plan.replicas)
    dollars = (
        prompts.engine.num_devices * prompts.price.per_hour,
        plan.engine.num_devices * plan.price.per_hour,
    )
    for index in sorted((0, 1), key=lambda which: (-dollars[which], which)):
        if counts[index] == 1:
            continue
        x, y = (count - (number == index) for number, count in enumerate(counts))
        count = (x, y)[index]
        label = f"with {count} {ROLES[index]} replica{'s' if count > 1 else ''}"
        fewer = apart.state_of(plan, x, y, "high")
        if fewer is not None and not fewer.misses(search.goals):
            continue
        if fewer is not None:
            goal = max(
                fewer.misses(search.goals),
                key=lambda g: fewer.time(g.metric, g.percentile) / g.limit,
            )
            time = fewer.time(goal.metric, goal.percentile)
            label += f" {goal.name} {shown_seconds(time)} of {shown_seconds(goal.limit)}"
        else:
            label += " more comes than they can do"
        return _of_pool(search, plan, prompts, index, label)
    if not search.goals:
        return _of_pool(search, plan, prompts, 1, ROLES[1])
    nearest = max(search.goals, key=lambda g: plan.times(g)[2] / g.limit)
    index = int(nearest.metric != "ttft")
    text = f"{ROLES[index]}: at the pessimistic end {nearest.name}"
    text += f" {shown_seconds(plan.times(nearest)[2])} of {shown_seconds(nearest.limit)}"
    return _of_pool(search, plan, prompts, index, text)


def _of_pool(
    search: Search, plan: Plan, prompts: PromptReplicas, index: int, label: str
) -> Binding:
    """What the steps of one of the two pools wait for."""
    lengths, state = search.traffic.lengths, plan.states["high"]
    if index:
        n = max(1, round(state.running))
        shape = StepShape(
            n, round(n * lengths.context), (), n, drafts=n * plan.engine.drafts.tokens
        )
        constraint, text = _of_step(search, plan.engine, shape)
    else:
        chunk = max(1, round(min(lengths.fresh, prompts.engine.budget)))
        constraint, text = _of_step(
            search, prompts.engine, StepShape(0, 0, ((chunk, lengths.cached),), 1)
        )
    return Binding(constraint, f"{label}; {text}")


def _overload(search: Search, plan: Plan, label: str) -> Binding:
    curve, limit = search.builder.curve(plan.engine), search.limit(plan.engine)
    point = curve.at(limit, "high")
    text = (
        f"{label} {search.traffic.rate / (plan.replicas - 1):.3g} requests/s come to each, and"
        f" {point.rate:.3g} end"
    )
    if curve.at(limit / 2, "high").rate > SATURATED * point.rate:
        state = plan.states["high"]
        constraint, why = waits_for(
            search, plan.engine, replace(state, point=point, running=limit), prompts=None
        )
        return Binding(constraint, f"{text}; {why}")
    return _no_room(search, plan.engine, limit, text)


def _no_room(search: Search, engine: EngineChoice, limit: float, text: str) -> Binding:
    if limit >= engine.seqs:
        return Binding(SCHEDULER, f"{text}; --max-num-seqs {engine.seqs} are full")
    if limit >= search.builder.curve(engine).most:
        return Binding(SCHEDULER, f"{text}; the budget of {engine.budget} tokens is full")
    deployment = search.builder.deployment(engine)
    blocks = deployment.info.num_blocks * deployment.info.block_size
    return Binding(MEMORY, f"{text}; {blocks:,} tokens of KV cache hold {limit:.0f} requests")


def _of_goal(
    search: Search,
    engine: EngineChoice,
    state: Steady,
    goal: Goal,
    label: str,
    *,
    time: float | None = None,
) -> Binding:
    if time is None:
        time = state.time(goal.metric, goal.percentile)
    text = f"{label} {goal.name} {shown_seconds(time)} of {shown_seconds(goal.limit)}"
    if goal.metric == "ttft":
        spread = state.ttft
        bare = replace(spread, rare=0.0).at(goal.percentile)
        if time > 1.5 * bare or state.running >= 0.999 * state.limit:
            return _no_room(search, engine, state.limit, text)
    constraint, why = waits_for(search, engine, state, prompts=goal.metric == "ttft" or None)
    return Binding(constraint, f"{text}; {why}")


def waits_for(
    search: Search, engine: EngineChoice, state: Steady, *, prompts: bool | None
) -> tuple[str, str]:
    """What the steps wait for, and how much of it they take.

    Args:
        prompts: Ask the steps with prompts, or those without; ``None``: what takes more of the
            time.
    """
    point, lengths = state.point, search.traffic.lengths
    if prompts is None:
        prompts = point.share * (point.mixed - point.decode) > point.decode / 2
    n = max(1, round(state.running))
    drafts = n * engine.drafts.tokens
    chunk = max(1, round(max(point.prompt, min(lengths.fresh, point.room))))
    chunks = ((chunk, lengths.cached),) if prompts else ()
    shape = StepShape(n, round(n * lengths.context), chunks, n + len(chunks), drafts=drafts)
    return _of_step(search, engine, shape)


def _of_step(search: Search, engine: EngineChoice, shape: StepShape) -> tuple[str, str]:
    """What a step waits for, in words and with the numbers of one device."""
    cost = search.builder.cost(engine)
    estimate = cost.step(shape)
    counts = StepCounts(cost.model, Dtypes(weights=engine.weights, kv_cache=engine.kv_cache))
    # One batch at a time is in all stages of a pipeline together, one after the other.
    part = share_of_group(batch_of_stage(shape, engine.pp), engine.dp)
    moved, flops = counts.bytes(part) / engine.tp, counts.flops(part) / engine.tp
    sheet, n, new = cost.hardware, shape.decode_requests, sum(size for size, _ in shape.prefill)
    words = [f"{n} request{'s' if n > 1 else ''}"] if n else []
    what = "a step of " + " and ".join([*words, *[f"{new:,} prompt tokens"] * bool(new)])
    each = " on each device" if engine.tp > 1 else ""
    if engine.pp > 1:
        each = f" through {engine.pp} groups of layers"
    if engine.dp > 1:
        each = " at most in each group"
    texts = {
        "memory": (
            f"reads {moved / 1e9:.3g} GB{each} (sheet: {sheet.memory_bandwidth / 1e12:.3g} TB/s)"
        ),
        "compute": (
            f"computes {flops / 1e12:.3g} TFLOP{each} (sheet:"
            f" {sheet.dense_flops[cost.compute_format] / 1e12:,.0f} TFLOP/s of"
            f" {cost.compute_format})"
        ),
        "communication": (
            f"sends between {engine.num_devices} devices at {cost.link / 1e9:.3g} GB/s"
        ),
        "launch": "waits for starts of kernels",
        "host": "waits for the host",
    }
    text = f"{what} {texts[estimate.binding]}: {shown_seconds(estimate.seconds)}"
    return RESOURCES[estimate.binding], text


def lever(search: Search, plan: Plan) -> Lever | None:
    """Among changes of one thing the one that saves most, or else that eases the targets most."""
    if plan.prompts is not None:
        return _lever_of_pools(search, plan, plan.prompts)
    if plan.proof is not None:  # formulas are compared with formulas
        base = search.fewest(plan.engine, "high")
        plan = base if isinstance(base, Plan) else plan
    tight = plan.states["high"].tightness(search.goals)
    cheaper: list[tuple[float, int, Lever]] = []
    easier: list[tuple[float, int, Lever]] = []
    for number, (change, engine) in enumerate(_changes(search, plan.engine)):
        try:
            result = search.fewest(engine, "high")
        except (ConfigError, InsufficientMemoryError):
            continue
        if not isinstance(result, Plan):
            continue
        if result.cost_per_hour < plan.cost_per_hour * 0.999:
            effect = (
                f"{result.replicas} replicas instead of {plan.replicas},"
                f" ${result.cost_per_hour:,.2f} an hour instead of ${plan.cost_per_hour:,.2f}"
            )
            cheaper.append((result.cost_per_hour, number, Lever(change, effect, result)))
        same = search.at(replace(result, replicas=plan.replicas), plan.replicas)
        if same is not None and (eased := same.tightness(search.goals)) < 0.97 * tight:
            price = result.price.per_hour * engine.num_devices * (plan.replicas + plan.spare)
            effect = _eased(search, plan, same, price)
            easier.append((eased, number, Lever(change, effect, result)))
    if cheaper:
        return min(cheaper, key=lambda each: each[:2])[2]
    if easier:
        return min(easier, key=lambda each: each[:2])[2]
    return None


def _lever_of_pools(search: Search, plan: Plan, prompts: PromptReplicas) -> Lever | None:
    """Among changes of one pool the one that saves most."""
    apart, rate = SplitSearch(search), plan.middle.rate * plan.replicas
    base = apart.fewest(prompts.engine, plan.engine, "high", rate)  # formulas with formulas
    if base is None:
        return None
    pairs = [
        (f"prefill: {change}", e, plan.engine) for change, e in _changes(search, prompts.engine)
    ]
    pairs += [
        (f"decode: {change}", prompts.engine, e) for change, e in _changes(search, plan.engine)
    ]
    best: Lever | None = None
    for change, first, second in pairs:
        # Blocks of another format, or of other weights, do not move.
        if (first.weights, first.kv_cache) != (second.weights, second.kv_cache):
            continue
        try:
            result = apart.fewest(first, second, "high", rate)
        except ConfigError:
            continue
        if result is None or result.cost_per_hour >= base.cost_per_hour * 0.999:
            continue
        if best is None or result.cost_per_hour < best.plan.cost_per_hour:
            effect = (
                f"{result.replicas_text} replicas instead of {base.replicas_text},"
                f" ${result.cost_per_hour:,.2f} an hour instead of ${base.cost_per_hour:,.2f}"
            )
            best = Lever(change, effect, result)
    return best


def _eased(search: Search, plan: Plan, state: Steady, price: float) -> str:
    goal = max(
        search.goals,
        key=lambda g: plan.states["high"].time(g.metric, g.percentile) / g.limit,
    )
    before = plan.states["high"].time(goal.metric, goal.percentile)
    after = state.time(goal.metric, goal.percentile)
    effect = f"{goal.name} {shown_seconds(before)} to {shown_seconds(after)}"
    more = price - plan.cost_per_hour
    return effect + (f" for ${more:,.2f} an hour more" if more > 0.005 else " at the same cost")


def _changes(search: Search, engine: EngineChoice) -> Iterator[tuple[str, EngineChoice]]:
    """Engines that differ in one thing, whether it was searched or not."""
    for weights in ("fp8", "int4"):
        if weights != engine.weights and engine.weights != "int4":
            yield f"{weights} weights", replace(engine, weights=weights)
    for kv_cache in ("fp8", "int8", "int4"):
        if kv_cache != engine.kv_cache and engine.kv_cache == "bf16":
            yield f"{kv_cache} KV cache", replace(engine, kv_cache=kv_cache)
    if not engine.drafts.tokens:
        drafts = DraftSetting(USUAL_DRAFTS, USUAL_ACCEPTANCE)
        change = f"{USUAL_DRAFTS} drafts a step, if {USUAL_ACCEPTANCE:.0%} come true (guessed)"
        yield change, replace(engine, drafts=drafts)
    for tp in (engine.tp * 2, engine.tp // 2):
        if tp >= 1 and tp * engine.dp <= search.builder.sheet(engine.gpu).link_domain:
            yield f"tensor parallel {tp}", replace(engine, tp=tp)
    for seqs in (engine.seqs * 2, engine.seqs // 2):
        if seqs:
            yield f"--max-num-seqs {seqs}", replace(engine, seqs=seqs)
    for budget in (engine.budget * 2, engine.budget // 2):
        if budget > engine.seqs:
            yield f"--max-num-batched-tokens {budget}", replace(engine, budget=budget)
