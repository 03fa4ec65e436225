"""Where prefill and decode apart pay: the highest rate that meets targets on four H100s."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from twostroke.core.config import SchedulerOptions
from twostroke.core.errors import ConfigError
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.find_rate import meets_all
from twostroke.simulator.results.summary import Summary
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

MODEL, DEVICES, REQUESTS = "llama-3.1-8b", 4, 400
TARGETS = {"ttft": 1.0, "tpot": 0.015}
# Tokens of a step where all replicas do both: a smaller one keeps answers going, prompts wait.
BUDGETS = (8192, 512)
# GB/s: NVLink, 400 Gb/s for each device, 100 Gb/s, 10 Gb/s.
LINKS = (450.0, 50.0, 12.5, 1.25)
# A rate that is found is at most this much below one that does not meet the targets.
PRECISION, GROWTH, LOWEST = 1.05, 1.5, 0.1
# Tokens of prompt and answer.
WORKLOADS = {"chat": (512, 256), "summaries": (3000, 200), "documents": (8000, 200)}
START = 8.0
MOST_TIMES_LONGER = 4
# Devices for prompts.
SPLITS = (1, 2)


@dataclass(frozen=True, slots=True)
class Payoff:
    """Requests a second of one workload; ``apart``: by link, with the best split of devices."""

    workload: str
    together: float
    budget: int
    split: tuple[int, int]
    apart: dict[float, float]


def payoffs() -> list[Payoff]:
    """All workloads, a process for each; minutes."""
    with ProcessPoolExecutor(max_workers=len(WORKLOADS)) as processes:
        return list(processes.map(payoff, WORKLOADS))


def payoff(name: str) -> Payoff:
    """One workload: together with the better budget, and apart with the better split."""
    prompt, answer = WORKLOADS[name]
    workload = SimulatedWorkloadOptions(
        workload="random", input_len=prompt, output_len=answer, num_requests=REQUESTS
    )
    together = {budget: _rate(_together(workload, budget), START) for budget in BUDGETS}
    budget = max(together, key=together.__getitem__)
    guess = together[budget]
    splits = {count: _rate(_apart(workload, count, LINKS[0]), guess) for count in SPLITS}
    prefill = max(splits, key=splits.__getitem__)
    apart = {LINKS[0]: splits[prefill]}
    apart |= {link: _rate(_apart(workload, prefill, link), guess) for link in LINKS[1:]}
    return Payoff(name, together[budget], budget, (prefill, DEVICES - prefill), apart)


def _together(workload: SimulatedWorkloadOptions, budget: int) -> Scenario:
    return Scenario(
        deployment=DeploymentOptions(model=MODEL, replicas=DEVICES, router="least-loaded"),
        scheduler=SchedulerOptions(max_num_batched_tokens=budget),
        workload=workload,
        targets=TARGETS,
    )


def _apart(workload: SimulatedWorkloadOptions, prefill: int, link: float) -> Scenario:
    fleet = FleetOptions(
        prefill=f"replicas={prefill}",
        decode=f"replicas={DEVICES - prefill}",
        transfer_bandwidth=link,
    )
    return Scenario(
        deployment=DeploymentOptions(model=MODEL, router="least-loaded"),
        scheduler=SchedulerOptions(max_num_batched_tokens=BUDGETS[0]),
        workload=workload,
        fleet=fleet,
        targets=TARGETS,
    )


def _rate(scenario: Scenario, guess: float) -> float:
    """The highest rate that meets the targets, sought from ``guess`` on."""
    low = high = guess
    if _meets(scenario, guess):
        while _meets(scenario, high := high * GROWTH):
            low = high
    else:
        while low > LOWEST and not _meets(scenario, low := low / GROWTH):
            high = low
    while high / low > PRECISION:
        middle = sqrt(low * high)
        low, high = (middle, high) if _meets(scenario, middle) else (low, middle)
    return low


def _meets(scenario: Scenario, rate: float) -> bool:
    """Judge like ``twostroke simulate --find rate``: also that the rate is kept up with.

    What ``MOST_TIMES_LONGER`` as many requests do not decide counts as not kept up with.
    """

    def summarize(times_longer: int) -> Summary:
        if times_longer > MOST_TIMES_LONGER:
            raise ConfigError("undecided")
        count = REQUESTS * times_longer
        workload = replace(scenario.workload, rate=rate, num_requests=count)
        return simulate(replace(scenario, workload=workload)).summary

    try:
        return meets_all(summarize)
    except ConfigError:
        return False


def table(found: list[Payoff]) -> list[str]:
    """Rates and, in brackets, how they compare with the same devices together."""
    head = " | ".join(f"{link:g} GB/s" for link in LINKS)
    lines = [
        f"| workload (prompt, answer) | together | apart | {head} |",
        "|---|---|---|" + "---|" * len(LINKS),
    ]
    for each in found:
        prompt, answer = WORKLOADS[each.workload]
        prefill, decode = each.split
        rates = [
            f"{each.apart[link]:.1f} ({each.apart[link] / each.together:.2f})" for link in LINKS
        ]
        name = f"{each.workload} ({prompt}, {answer})"
        lines.append(f"| {name} | {each.together:.1f} | {prefill}:{decode} | {' | '.join(rates)} |")
    return lines


def plot(found: list[Payoff], path: Path) -> None:
    """Draw what a link makes of it: above 1, apart pays."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for each in found:
        shares = [each.apart[link] / each.together for link in LINKS]
        axes.plot(LINKS, shares, marker="o", label=each.workload)
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="together")
    axes.set_xscale("log")
    axes.set_xlabel("link, GB/s each way and device")
    axes.set_ylabel("highest rate, apart / together")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
