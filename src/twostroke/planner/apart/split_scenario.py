"""A plan with prefill and decode apart as a scenario of the simulator."""

from __future__ import annotations

from itertools import product
from math import gcd, log

from twostroke.core.config import SchedulerOptions
from twostroke.planner.engines import EngineBuilder, EngineChoice
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.scenario import Scenario

# Replicas of each kind that are simulated at most, where fewer do not have the same ratio.
MOST_OF_A_KIND = 6
# Every prompt is computed apart: formulas know no others.
LEAST_PROMPT = 1


def part_of_pools(prompts: int, answers: int) -> tuple[int, int, float]:
    """Fewer replicas in about the same ratio, and the part of the traffic that is theirs.

    Where the ratio differs, neither kind has less to do than it would have.
    """
    common = gcd(prompts, answers)
    if max(prompts, answers) // common <= MOST_OF_A_KIND:
        return prompts // common, answers // common, 1 / common
    counts = range(1, MOST_OF_A_KIND + 1)
    x, y = min(
        product(counts, counts),
        key=lambda pair: (abs(log(pair[0] / prompts * answers / pair[1])), pair),
    )
    return x, y, max(x / prompts, y / answers)


def split_scenario(
    builder: EngineBuilder,
    prompts: EngineChoice,
    num_prompts: int,
    answers: EngineChoice,
    num_answers: int,
) -> Scenario:
    """Replicas of two roles, as ``twostroke simulate --prefill --decode`` has them."""
    return Scenario(
        deployment=builder.options(answers),
        scheduler=SchedulerOptions(
            max_num_seqs=answers.seqs, max_num_batched_tokens=answers.budget
        ),
        cache=builder.cache(answers),
        fleet=FleetOptions(
            prefill=pool_text(prompts, num_prompts),
            decode=pool_text(answers, num_answers),
            prefill_min_tokens=LEAST_PROMPT,
            transfer_bandwidth=builder.search.transfer_bandwidth,
        ),
    )


def pool_text(engine: EngineChoice, replicas: int) -> str:
    """Equal replicas of a role, as the flags of ``twostroke simulate`` name them."""
    values = {
        "gpu": engine.gpu,
        "tp": engine.tp,
        "replicas": replicas,
        "max_num_seqs": engine.seqs,
        "max_num_batched_tokens": engine.budget,
    }
    splits = {
        "data_parallel_size": engine.dp,
        "pipeline_parallel_size": engine.pp,
    }
    values |= {name: size for name, size in splits.items() if size > 1}
    words = [f"{name}={value}" for name, value in values.items()]
    return ",".join([*words, *["enable_expert_parallel=true"] * engine.ep])
