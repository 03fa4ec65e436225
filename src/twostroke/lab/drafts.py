"""Claims on speculation: what it gains, and from which acceptance on."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from twostroke.lab.claim import (
    Computed,
    Curves,
    Fact,
    FieldClaim,
    Observed,
    Verdict,
    VerdictName,
    judge_all,
    judge_range,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import LiveBench, run_batch
from twostroke.lab.numbers import shown_times

CLAIMED_GAIN, CLAIMED_RATES = (2.0, 3.0), (0.7, 0.85)
CLAIMED_BREAK_EVEN = 0.5
CONTEXT, DEPTH = 1500, 4
DRAFTED = Placed("llama-3.1-70b", "h100", 4, draft_model="llama-3.2-1b")
PLAIN = Placed("llama-3.1-70b", "h100", 4)
BATCHES = (1, 8, 32, 128, 256)
# Of the live runs: answers long enough that the prompt does not count.
ANSWER, ROUNDS, MOST_SECONDS = 96, 4, 8.0


def tokens_a_pass(acceptance: float, depth: int) -> float:
    """1 + a + ... + a^k: tokens that a pass gives, if each draft is right with probability a."""
    return sum(acceptance**power for power in range(depth + 1))


def gain(drafted: Placed, requests: int, acceptance: float, depth: int) -> float:
    """TPOT without drafts over TPOT with them."""
    plain = PLAIN.decode(requests, CONTEXT).seconds
    checked = drafted.decode(requests, CONTEXT, drafts=depth).seconds
    return tokens_a_pass(acceptance, depth) * plain / checked


def break_even(drafted: Placed, requests: int, depth: int) -> float | None:
    """The acceptance from which drafts pay, by bisection; ``None``: not even if all are right."""
    if gain(drafted, requests, 1.0, depth) <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(drafted, requests, middle, depth) > 1 else (middle, high)
    return high


def _gains() -> Computed:
    low, high = CLAIMED_RATES
    by_batch = {n: (gain(DRAFTED, n, low, DEPTH), gain(DRAFTED, n, high, DEPTH)) for n in BATCHES}
    alone, full = by_batch[1], by_batch[BATCHES[-1]]
    every = [value for pair in by_batch.values() for value in pair]
    cost = DRAFTED.decode(1, CONTEXT, drafts=DEPTH).seconds / PLAIN.decode(1, CONTEXT).seconds
    return Computed(
        on=f"{PLAIN.describe()}, {DEPTH} drafts by {DRAFTED.draft_model}",
        facts=(
            Fact(
                "tokens a pass",
                f"{tokens_a_pass(low, DEPTH):.3g} at {low:g},"
                f" {tokens_a_pass(high, DEPTH):.3g} at {high:g}; the pass takes"
                f" {shown_times(cost)} as long",
            ),
            *(
                Fact(
                    "one request" if n == 1 else f"{n} at once",
                    f"{shown_times(pair[0])} to {shown_times(pair[1])} as fast",
                )
                for n, pair in by_batch.items()
            ),
        ),
        verdict=Verdict(
            judge_all(every, *CLAIMED_GAIN),
            f"For one request: {alone[0]:.2g} to {alone[1]:.2g} times. A full batch uses the"
            f" arithmetic that drafts would take: {BATCHES[-1]} at once run at {full[0]:.2g} to"
            f" {full[1]:.2g} times the speed. Adapt the depth to the load.",
        ),
        plot=Curves(
            curves={
                f"acceptance {rate:g}": [(n, by_batch[n][index]) for n in BATCHES]
                for index, rate in enumerate(CLAIMED_RATES)
            },
            x_title="requests that decode at once",
            y_title="times as fast",
            limit=1.0,
        ),
        figures={
            "alone_low": alone[0],
            "alone_high": alone[1],
            "full_low": full[0],
            "full_high": full[1],
        },
    )


@dataclass(frozen=True, slots=True)
class LiveGain:
    """A live run with drafts of a known acceptance: times as fast as without."""

    acceptance: float
    gain: float


def live_gains(bench: LiveBench, rates: tuple[float, ...], depth: int) -> list[LiveGain]:
    """One request, drafts that cost nothing and are right at a given rate, against none.

    All take turns: what else the machine does meets each of them.
    """
    configs: list[dict[str, object]] = [{}]
    for rate in rates:
        synthetic = {
            "method": "synthetic",
            "num_speculative_tokens": depth,
            "acceptance_rate": rate,
            "adaptive": False,
        }
        configs.append({"speculative_config": synthetic})
    seconds: list[list[float]] = [[] for _ in configs]
    with ExitStack() as stack:
        engines = [
            stack.enter_context(bench.engine(max_num_seqs=4, max_model_len=512, **config))
            for config in configs
        ]
        began = time.perf_counter()
        for number in range(1 + ROUNDS):
            if number > 1 and time.perf_counter() - began > MOST_SECONDS:
                break
            for engine, measured in zip(engines, seconds):
                measured.append(run_batch(engine, [(32, ANSWER)], seed=number))
    # The first round warms up. Which drafts are right depends on the seed, so the mean counts.
    plain, *drafted = (mean(measured[1:]) for measured in seconds)
    return [LiveGain(rate, plain / each) for rate, each in zip(rates, drafted)]


def _observe_gains(bench: LiveBench) -> Observed:
    gains = live_gains(bench, CLAIMED_RATES, DEPTH)
    return Observed(
        facts=tuple(
            Fact(
                f"acceptance {each.acceptance:g}",
                f"{shown_times(each.gain)} as fast; a pass"
                f" gives {tokens_a_pass(each.acceptance, DEPTH):.3g} tokens",
            )
            for each in gains
        ),
        text="Drafts are drawn here and cost nothing to make. A pass over five rows costs a"
        " processor more than one over a single row, which takes its part of the gain.",
        figures={f"{each.acceptance:g}": each.gain for each in gains},
    )


def _even() -> Computed:
    rates = {n: break_even(DRAFTED, n, DEPTH) for n in BATCHES}
    quoted = {n: break_even(PLAIN, n, DEPTH) for n in BATCHES}

    def text(rate: float | None) -> str:
        return "never" if rate is None else f"{rate:.0%}"

    reached = [rate for rate in (*rates.values(), *quoted.values()) if rate is not None]
    near = [
        judge_range(rate, CLAIMED_BREAK_EVEN, CLAIMED_BREAK_EVEN) == "holds" for rate in reached
    ]
    name: VerdictName = "holds with a condition" if any(near) else "wrong as stated"
    if all(near) and len(near) == 2 * len(BATCHES):
        name = "holds"
    alone, quote = text(rates[1]), text(quoted[1])
    where = " or ".join(
        f"{n} at once whose drafts are {kind}"
        for kind, shares in (("made by a model", rates), ("quoted", quoted))
        for n, rate in shares.items()
        if rate is not None and judge_range(rate, CLAIMED_BREAK_EVEN, CLAIMED_BREAK_EVEN) == "holds"
    )
    right = f" About 50 % is right for {where}." if where else ""
    full = BATCHES[-1]
    return Computed(
        on=f"{PLAIN.describe()}, {DEPTH} drafts by {DRAFTED.draft_model}, or quoted ones that cost"
        " nothing",
        facts=tuple(
            Fact(
                "one request" if n == 1 else f"{n} at once",
                f"a model drafts: {text(rates[n])}; quoted: {text(quoted[n])}",
            )
            for n in BATCHES
        ),
        verdict=Verdict(
            name,
            f"It is not one number. Drafts pay where 1 + a + ... + a^k exceeds what the longer pass"
            f" costs: from {alone} on for one request ({quote} if quoted), and from"
            f" {text(rates[full])} on for {full} ({text(quoted[full])}). Deeper drafts need more."
            f"{right}",
        ),
        plot=Curves(
            curves={
                name: [(n, 100 * rate) for n, rate in found.items() if rate is not None]
                for name, found in (("a model drafts", rates), ("quoted", quoted))
            },
            x_title="requests that decode at once",
            y_title="acceptance from which drafts pay, %",
            limit=100 * CLAIMED_BREAK_EVEN,
        ),
        figures={
            f"{kind}_{n}": rate
            for kind, found in (("model", rates), ("quoted", quoted))
            for n, rate in found.items()
            if rate is not None
        },
    )


def _observe_even(bench: LiveBench) -> Observed:
    gains = live_gains(bench, (0.0, 0.3, 0.6, 0.9), DEPTH)
    crossing = None
    for left, right in pairwise(gains):
        if left.gain < 1 <= right.gain:
            part = (1 - left.gain) / (right.gain - left.gain)
            crossing = left.acceptance + part * (right.acceptance - left.acceptance)
            break
    return Observed(
        facts=tuple(
            Fact(f"acceptance {each.acceptance:g}", f"{shown_times(each.gain)} as fast")
            for each in gains
        ),
        text="Drafts never pay or always do at these rates."
        if crossing is None
        else f"Here {DEPTH} drafts that cost nothing pay from {crossing:.0%} on.",
        figures={f"{each.acceptance:g}": each.gain for each in gains},
    )


CLAIMS = (
    FieldClaim(
        name="speculation",
        text="Speculation makes decode 2 to 3 times as fast at an acceptance of 0.7 to 0.85.",
        source="Leviathan et al., Fast Inference via Speculative Decoding (ICML 2023)",
        compute=_gains,
        observe=_observe_gains,
    ),
    FieldClaim(
        name="speculation-break-even",
        text="Speculation pays from an acceptance of about 50 % on.",
        source="a rule of thumb for when to switch it off",
        compute=_even,
        observe=_observe_even,
    ),
)
