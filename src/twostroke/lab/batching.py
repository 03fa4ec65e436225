"""Claims on requests that run together: throughput, and what each reader sees of it."""

from __future__ import annotations

import math
import random
import time

from twostroke.lab.claim import (
    Bars,
    Computed,
    Curves,
    Fact,
    FieldClaim,
    Observed,
    Verdict,
    VerdictName,
    judge_all,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import LiveBench, decode_seconds, greedy, random_prompt, run_to_end
from twostroke.lab.live import run_batch as run_live_batch
from twostroke.lab.numbers import shown_time, shown_times
from twostroke.simulator.results.summary import Summary
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

CLAIMED_GAIN = (2.0, 4.0)
CHATS = SimulatedWorkloadOptions(workload="sharegpt-like", num_requests=1000)
EIGHT = Placed("llama-3.1-8b", "h100")
SEVENTY = Placed("llama-3.1-70b", "h100", 4)
# Two words a second; an English word is some four thirds of a token.
TOKENS_A_WORD = 4 / 3
SLOW_TPOT = 1 / (2 * TOKENS_A_WORD)
BUSY = 0.9
NUM_LIVE = 48


def _static() -> Computed:
    gains, texts = {}, {}
    for seqs in (16, 32, 64):
        rates = {
            batching: EIGHT.run(
                CHATS, batching=batching, max_num_seqs=seqs, max_num_batched_tokens=2048
            ).summary.output_throughput
            for batching in ("continuous", "static")
        }
        gains[seqs] = rates["continuous"] / rates["static"]
        texts[seqs] = (
            f"{rates['continuous']:,.0f} against {rates['static']:,.0f} tokens/s:"
            f" {shown_times(gains[seqs])} as many"
        )
    same = SimulatedWorkloadOptions(
        workload="random", num_requests=512, input_len=160, output_len=338
    )
    equal = {
        batching: EIGHT.run(
            same, batching=batching, max_num_seqs=32, max_num_batched_tokens=2048
        ).summary.output_throughput
        for batching in ("continuous", "static")
    }
    even = equal["continuous"] / equal["static"]
    low, high = min(gains.values()), max(gains.values())
    name: VerdictName = judge_all([*gains.values(), even], *CLAIMED_GAIN)
    return Computed(
        on=f"{EIGHT.describe()}, 1,000 chats with lengths as in ShareGPT, all there at once",
        facts=(
            *(Fact(f"{seqs} at once", text) for seqs, text in texts.items()),
            Fact("answers of equal lengths", f"{shown_times(even)} as many"),
        ),
        verdict=Verdict(
            name,
            f"{low:.2g} to {high:.2g} times with answers as chats have them. The gain is the places"
            " that stand empty while the longest answer of a batch is written: answers of equal"
            f" lengths gain {even - 1:.0%}.",
        ),
        plot=Bars(
            values=[
                *((f"{seqs} at once", gain) for seqs, gain in gains.items()),
                ("equal lengths", even),
            ],
            title="times the throughput",
        ),
        figures={"low": low, "high": high, "even": even},
    )


def _observe_static(bench: LiveBench) -> Observed:
    rng = random.Random(0)
    lengths = [
        (rng.randint(8, 16), min(max(round(rng.lognormvariate(math.log(16), 1.3)), 2), 128))
        for _ in range(NUM_LIVE)
    ]
    seconds, steps = {}, {}
    for batching in ("continuous", "static"):
        with bench.engine(batching=batching, max_num_seqs=8) as engine:
            calls = [
                greedy(f"{number}", random_prompt(rng, engine, prompt), answer)
                for number, (prompt, answer) in enumerate(lengths)
            ]
            began = time.perf_counter()
            for call in calls:
                engine.submit(call)
            steps[batching] = run_to_end(engine)
            seconds[batching] = time.perf_counter() - began
    gain = seconds["static"] / seconds["continuous"]
    fewer = steps["static"] / steps["continuous"]
    return Observed(
        facts=(
            Fact(
                f"{NUM_LIVE} requests, 8 at once",
                f"{shown_time(seconds['continuous'])} against"
                f" {shown_time(seconds['static'])}: {shown_times(gain)} as fast",
            ),
            Fact(
                "steps",
                f"{steps['continuous']:,} against {steps['static']:,}: {shown_times(fewer)} fewer",
            ),
        ),
        text="Fewer steps are sure. What they save depends on a full step: little where"
        " one for 8 requests takes much longer than one for a single request.",
        figures={"gain": gain, "fewer": fewer, **{f"{k}_steps": v for k, v in steps.items()}},
    )


LOADS = {
    "chats": (500, 300),
    "long prompts": (12000, 60),
}


def _of_users(prompt: int, answer: int) -> Summary:
    """What 64 users see who wait for each answer and ask again."""
    load = SimulatedWorkloadOptions(
        workload="random",
        num_requests=300,
        input_len=prompt,
        output_len=answer,
        arrivals="closed",
        concurrency=64,
    )
    return SEVENTY.run(load, max_num_seqs=64, max_num_batched_tokens=8192).summary


def _readers() -> Computed:
    context = 2000
    room = _room(SEVENTY) // context
    sizes = [*(n for n in (1, 4, 8, 16, 32, 64, 128) if n < room), room]
    steps = {n: SEVENTY.decode(n, context).seconds for n in sizes}
    most = sizes[-1]
    runs = {name: _of_users(*lengths) for name, lengths in LOADS.items()}
    tpots = {name: run.latencies["tpot"].percentiles[50] for name, run in runs.items()}
    slow = [
        name
        for name, run in runs.items()
        if run.use.busy >= BUSY and tpots[name] >= 0.9 * SLOW_TPOT
    ]
    verdict: VerdictName = "wrong as stated"
    if slow:
        verdict = "holds" if len(slow) == len(runs) else "holds with a condition"
    return Computed(
        on=SEVENTY.describe(),
        facts=(
            Fact("two words a second", f"a TPOT of {shown_time(SLOW_TPOT)}"),
            *(
                Fact(
                    f"{n} decode at once",
                    f"TPOT {shown_time(steps[n])}, {n / steps[n]:,.0f} tokens/s together",
                )
                for n in (1, 32, most)
            ),
            *(
                Fact(
                    f"64 users, {name}",
                    f"busy {run.use.busy:.0%}, TPOT"
                    f" {shown_time(tpots[name])}: {1 / tpots[name] / TOKENS_A_WORD:.2g} words/s",
                )
                for name, run in runs.items()
            ),
        ),
        verdict=Verdict(
            verdict,
            f"Busy says nothing of what readers see: both servers are busy all the time, one"
            f" writes {1 / tpots['chats'] / TOKENS_A_WORD:.0f} words/s, the other"
            f" {1 / tpots['long prompts'] / TOKENS_A_WORD:.2g}. Large batches alone never become so"
            f" slow: {most} at once fill the memory at {shown_time(steps[most])} a token. Steps"
            " full of other people's prompts do.",
        ),
        plot=Curves(
            curves={"TPOT": [(n, 1e3 * seconds) for n, seconds in steps.items()]},
            x_title="requests that decode at once",
            y_title="ms a token",
        ),
        figures={
            "alone": steps[1],
            "most": steps[most],
            "requests": most,
            "chats": tpots["chats"],
            "long": tpots["long prompts"],
        },
    )


def _room(placed: Placed) -> int:
    info = placed.deployment().info
    return info.num_blocks * info.block_size


def _observe_readers(bench: LiveBench) -> Observed:
    sizes = (1, 4, 16)
    with bench.engine(max_num_seqs=max(sizes)) as engine:
        steps = {n: decode_seconds(engine, n) for n in sizes}
    first, last = sizes[0], sizes[-1]
    return Observed(
        facts=tuple(
            Fact(
                f"{n} at once", f"TPOT {shown_time(seconds)}, {n / seconds:,.0f} tokens/s together"
            )
            for n, seconds in steps.items()
        ),
        text=f"{last} times the readers wait {shown_times(steps[last] / steps[first])} as long for"
        " each token; the machine is busy either way.",
        figures={f"step_{n}": seconds for n, seconds in steps.items()},
    )


def _short() -> Computed:
    shorter, longer, prompt = 10, 300, 1000
    pair = (Placed("llama-3.1-8b", "h100-pcie"), Placed("llama-3.1-8b", "a100"))
    rates: dict[tuple[str, int], float] = {}
    for placed in pair:
        for answer in (shorter, longer):
            load = SimulatedWorkloadOptions(
                workload="random",
                num_requests=256,
                input_len=prompt,
                output_len=answer,
                arrivals="closed",
                concurrency=32,
            )
            run = placed.run(load, max_num_seqs=64, max_num_batched_tokens=8192)
            rates[placed.cost.hardware.name, answer] = run.summary.output_throughput
    left, right = (placed.cost.hardware.name for placed in pair)
    ratios = {answer: rates[left, answer] / rates[right, answer] for answer in (shorter, longer)}
    slow = rates[right, longer] / rates[right, shorter]
    error = ratios[shorter] / ratios[longer]
    deceives = max(error, 1 / error) >= 1.2
    return Computed(
        on=f"llama-3.1-8b on 1 x {left} and on 1 x {right}, 32 users, prompts of {prompt:,}",
        facts=tuple(
            Fact(
                f"answers of {answer}",
                f"{rates[left, answer]:,.0f} against"
                f" {rates[right, answer]:,.0f} tokens/s: {shown_times(ratios[answer])} as many",
            )
            for answer in (shorter, longer)
        ),
        verdict=Verdict(
            "holds" if deceives else "wrong as stated",
            f"With {shorter} tokens the first device looks {shown_times(ratios[shorter])} as fast,"
            f" with {longer} it is {shown_times(ratios[longer])}. The short benchmark times"
            " prompts, so it compares arithmetic; answers as people read them compare bandwidth."
            f" Its tokens/s are also {shown_times(slow)} too low for the second device.",
        ),
        plot=Bars(
            values=[
                (f"{gpu.partition('-80gb')[0]}, {answer}", rate)
                for (gpu, answer), rate in rates.items()
            ],
            title="output tokens/s by answer length",
        ),
        figures={"short": ratios[shorter], "long": ratios[longer], "too_low": slow},
    )


def _observe_short(bench: LiveBench) -> Observed:
    rates = {}
    with bench.engine(max_num_seqs=8) as engine:
        for answer in (10, 100):
            seconds = run_live_batch(engine, [(128, answer)] * 8)
            rates[answer] = 8 * answer / seconds
    return Observed(
        facts=tuple(
            Fact(f"8 requests, answers of {answer}", f"{rate:,.0f} tokens/s")
            for answer, rate in rates.items()
        ),
        text=f"The same server, {shown_times(rates[100] / rates[10])} as many tokens a second with"
        " longer answers: short ones time the prompts.",
        figures={"short": rates[10], "long": rates[100]},
    )


CLAIMS = (
    FieldClaim(
        name="continuous-batching",
        text="Continuous batching gives 2 to 4 times the throughput of static batching.",
        source="Yu et al., Orca (OSDI 2022), and posts since; some report far more",
        compute=_static,
        observe=_observe_static,
    ),
    FieldClaim(
        name="busy-and-slow",
        text="A server that is 90 % busy may write each reader two words a second.",
        source="operators' warnings: utilisation is not what users see",
        compute=_readers,
        observe=_observe_readers,
    ),
    FieldClaim(
        name="short-benchmarks",
        text="A benchmark with answers of 10 tokens deceives.",
        source="advice on how to read published tokens per second",
        compute=_short,
        observe=_observe_short,
    ),
)
