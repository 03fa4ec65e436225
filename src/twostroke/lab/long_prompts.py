"""Claims on long prompts and long contexts: who waits for them, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from twostroke.lab.claim import Bars, Computed, Curves, Fact, FieldClaim, Observed, Verdict
from twostroke.lab.devices import Placed
from twostroke.lab.live import (
    Gaps,
    LiveBench,
    decode_seconds,
    fitting_length,
    gaps_of_an_arrival,
    prompt_seconds,
)
from twostroke.lab.numbers import shown_range, shown_time, shown_times
from twostroke.questions.small_run import AskedRequest, AskedRun, GPUName, ModelName
from twostroke.simulator.answer_question import answer_question

LONG, CLAIMED_STALL = 32_000, 0.5
CHUNK, CHUNKS = 1024, 8
RUNNING, CONTEXT = 8, 1000
# Tokens of the others' answers, so that they run until the long prompt has come through.
LEAD, ANSWER = 4, 400


@dataclass(frozen=True, slots=True)
class LongArrival:
    """What a long prompt does where others decode, simulated. Times in seconds.

    ``worst``: the longest wait of the others between two tokens; ``ttft``: of the long prompt.
    """

    worst: float
    ttft: float


def arrive(model: ModelName, gpu: GPUName, tp: int, length: int, budget: int) -> LongArrival:
    """Let requests decode, and a long prompt come; the scheduler is the one that serves."""
    # They have all decoded a while before it comes.
    alone = Placed(model, gpu, tp)
    begin = RUNNING * alone.prompt(CONTEXT).seconds + LEAD * alone.decode(RUNNING, CONTEXT).seconds
    requests = [AskedRequest(prompt=CONTEXT, output=ANSWER) for _ in range(RUNNING)]
    requests.append(AskedRequest(arrival=2 * begin, prompt=length, output=2))
    answer = answer_question(
        AskedRun(
            requests=requests,
            model=model,
            gpu=gpu,
            tp=tp,
            max_num_batched_tokens=budget,
            enable_prefix_caching=False,
        )
    )
    *others, long = answer.requests
    # Their own prompts came before: only gaps while the long one is computed count.
    steps = answer.steps
    worst = max(
        end - begin
        for begin, end in zip(steps.begin, steps.end)
        if long.arrival <= end <= long.first_token + 1e-9
    )
    assert all(other.finish > long.first_token for other in others)
    return LongArrival(worst, long.ttft)


def _stall() -> Computed:
    eight, seventy = Placed("llama-3.1-8b", "h100-sxm"), Placed("llama-3.1-70b", "h100-sxm", 4)
    whole = arrive("llama-3.1-8b", "h100-sxm", 1, LONG, 2 * LONG)
    large = arrive("llama-3.1-70b", "h100-sxm", 4, LONG, 2 * LONG)
    step = eight.mixed(RUNNING, CONTEXT, LONG)
    sheet, model = eight.cost.hardware, eight.cost.model
    weights = LONG * model.linear_flops()
    attention = model.attention_flops(LONG)
    least = weights / sheet.dense_flops["bf16"]
    # No interval reaches below what all FLOPs take.
    low = max(step.low, least * (1 + attention / weights))
    inside = low <= CLAIMED_STALL <= step.high
    lengths = (1000, 4000, 8000, 16000, LONG)
    return Computed(
        on=f"{eight.describe()}; {seventy.describe()}; {RUNNING} requests decode meanwhile",
        facts=(
            Fact("products with weights, at the full rate", shown_time(least)),
            Fact("attention adds", f"{attention / weights:.0%} more FLOPs"),
            Fact("8B, one step for the whole prompt", shown_range(whole.worst, low, step.high)),
            Fact("70B on 4", shown_time(large.worst)),
        ),
        verdict=Verdict(
            "holds" if inside else "wrong as stated",
            f"{shown_time(least)} is what the weights' products take at the full rate. With"
            f" attention, and at the rate that is reached, everyone waits {shown_time(whole.worst)}"
            f" on an 8B model and {shown_time(large.worst)} on 70B with four devices.",
        ),
        plot=Curves(
            curves={
                "8B": [(n, 1e3 * eight.mixed(RUNNING, CONTEXT, n).seconds) for n in lengths],
                "70B on 4": [
                    (n, 1e3 * seventy.mixed(RUNNING, CONTEXT, n).seconds) for n in lengths
                ],
            },
            x_title="prompt tokens in one step",
            y_title="ms that everyone waits",
            limit=1e3 * CLAIMED_STALL,
        ),
        figures={"eight": whole.worst, "seventy": large.worst, "least": least},
    )


def _observe_stall(bench: LiveBench) -> Observed:
    with bench.engine(max_num_batched_tokens=2**15, max_num_seqs=8) as engine:
        length = fitting_length(engine, 8192)
        gaps = gaps_of_an_arrival(engine, length)
    return Observed(
        facts=(
            Fact("4 requests decode, worst gap", shown_time(gaps.quiet)),
            Fact(
                f"a prompt of {length:,} arrives",
                f"{shown_time(gaps.worst)}: {shown_times(gaps.worst / gaps.quiet)} as long",
            ),
        ),
        text="A prompt in one step stops everyone for as long as it takes.",
        figures={"quiet": gaps.quiet, "worst": gaps.worst},
    )


def _chunks() -> Computed:
    length = CHUNK * CHUNKS
    placed = Placed("llama-3.1-8b", "h100-sxm")

    def arrival(tokens: int, budget: int) -> LongArrival:
        return arrive("llama-3.1-8b", "h100-sxm", 1, tokens, budget)

    whole = arrival(length, 2 * length)
    sizes = (256, 512, CHUNK, 2048, 4096)
    parts = {size: arrival(length, size + RUNNING) for size in sizes}
    chunked = parts[CHUNK]
    longer = arrival(LONG, CHUNK + RUNNING)
    last = placed.mixed(RUNNING, CONTEXT, CHUNK, LONG - CHUNK).seconds
    first = placed.mixed(RUNNING, CONTEXT, CHUNK).seconds
    gain, price = whole.worst / chunked.worst, chunked.ttft / whole.ttft
    return Computed(
        on=f"{placed.describe()}, {RUNNING} requests decode meanwhile",
        facts=(
            Fact(
                f"{length:,} tokens in one step",
                f"all wait {shown_time(whole.worst)}; TTFT {shown_time(whole.ttft)}",
            ),
            Fact(
                f"in {CHUNKS} chunks of {CHUNK:,}",
                f"{shown_time(chunked.worst)} at most; TTFT {shown_time(chunked.ttft)}",
            ),
            Fact(
                f"{LONG:,} tokens, chunks of {CHUNK:,}",
                f"{-(-LONG // CHUNK)} chunks,"
                f" {shown_time(longer.worst)} at most; TTFT {shown_time(longer.ttft)}",
            ),
            Fact(
                "the last of those over the first",
                f"{shown_times(last / first)} as long: it attends to all before it",
            ),
        ),
        verdict=Verdict(
            "holds" if gain >= CHUNKS / 2 else "wrong as stated",
            f"The wait falls {shown_times(gain)}, from {shown_time(whole.worst)} to"
            f" {shown_time(chunked.worst)}, and the long prompt pays with a TTFT"
            f" {shown_times(price)} as long. The bound grows with what is cached before the chunk:"
            f" {shown_time(longer.worst)} at the end of {LONG:,} tokens.",
        ),
        plot=Bars(
            values=[
                ("one step", 1e3 * whole.worst),
                *((f"chunks of {size:,}", 1e3 * parts[size].worst) for size in reversed(sizes)),
            ],
            title="ms that everyone waits at most",
        ),
        figures={
            "whole": whole.worst,
            "chunked": chunked.worst,
            "whole_ttft": whole.ttft,
            "chunked_ttft": chunked.ttft,
            "longer": longer.worst,
        },
    )


def _observe_chunks(bench: LiveBench) -> Observed:
    seen: dict[str, Gaps] = {}
    options = {"max_num_batched_tokens": 2**15, "max_num_seqs": 8}
    with bench.engine(**options) as engine:
        length = fitting_length(engine, CHUNK * CHUNKS)
        chunk = length // CHUNKS
        seen["whole"] = gaps_of_an_arrival(engine, length)
    with bench.engine(**options, max_prefill_chunk=chunk) as engine:
        seen["chunked"] = gaps_of_an_arrival(engine, length)
    whole, chunked = seen["whole"], seen["chunked"]
    return Observed(
        facts=(
            Fact(
                f"{length:,} tokens in one step",
                f"gap {shown_time(whole.worst)}, TTFT {shown_time(whole.ttft)}",
            ),
            Fact(
                f"in {CHUNKS} chunks of {chunk:,}",
                f"gap {shown_time(chunked.worst)}, TTFT {shown_time(chunked.ttft)}",
            ),
        ),
        text=f"The worst gap falls {shown_times(whole.worst / chunked.worst)}, for a TTFT"
        f" {shown_times(chunked.ttft / whole.ttft)} as long.",
        figures={"whole": whole.worst, "chunked": chunked.worst},
    )


def _ttft() -> Computed:
    placed = Placed("llama-3.1-8b", "h100-sxm")
    lengths = (500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
    times = {n: placed.prompt(n).seconds for n in lengths}
    grows = all(times[a] < times[b] for a, b in pairwise(lengths))
    double = {n: times[2 * n] / times[n] for n in lengths[:-1] if 2 * n in times}
    return Computed(
        on=placed.describe(),
        facts=(
            *(Fact(f"{n:,} tokens", shown_time(times[n])) for n in lengths[1::2]),
            Fact(
                "twice the prompt",
                f"{shown_times(double[1000])} the time at 1,000 tokens,"
                f" {shown_times(double[64000])} at 64,000",
            ),
        ),
        verdict=Verdict(
            "holds" if grows else "wrong as stated",
            "In proportion at first, faster than that once attention counts: a prompt twice as long"
            f" takes {shown_times(double[1000])} as long at 1,000 tokens and"
            f" {shown_times(double[64000])} at 64,000. A cached prefix takes its part off.",
        ),
        plot=Curves(
            curves={"TTFT": [(n, times[n]) for n in lengths]},
            x_title="prompt tokens",
            y_title="seconds",
        ),
        figures={f"{n}": seconds for n, seconds in times.items()},
    )


def _observe_ttft(bench: LiveBench) -> Observed:
    with bench.engine(max_num_batched_tokens=2**15) as engine:
        longest = fitting_length(engine, 4096)
        lengths = [max(64, longest // part) for part in (16, 4, 1)]
        times = {n: prompt_seconds(engine, n) for n in lengths}
    first, last = lengths[0], lengths[-1]
    return Observed(
        facts=tuple(Fact(f"{n:,} tokens", shown_time(seconds)) for n, seconds in times.items()),
        text=f"{last // first} times the prompt takes {shown_times(times[last] / times[first])} as"
        " long.",
        figures={f"{n}": seconds for n, seconds in times.items()},
    )


def _tpot() -> Computed:
    placed = Placed("llama-3.1-8b", "h100-sxm")
    contexts = (1000, 4000, 8000, 16000, 32000, 64000, 128000)
    info = placed.deployment().info
    room = info.num_blocks * info.block_size
    curves: dict[str, list[tuple[float, float]]] = {}
    for requests in (1, 8, 32):
        fitting = [n for n in contexts if n * requests <= room]
        times = [(n, 1e3 * placed.decode(requests, n).seconds) for n in fitting]
        curves[f"{requests} at once"] = [(float(n), seconds) for n, seconds in times]
    alone = {n: placed.decode(1, n).seconds for n in contexts}
    growth = alone[contexts[-1]] / alone[contexts[0]]
    weights = placed.cost.model.weight_bytes()
    even = weights / placed.cost.model.kv_bytes_per_token("bf16")
    eight = {n: placed.decode(8, n).seconds for n in contexts if 8 * n <= room}
    n_last = max(eight)
    return Computed(
        on=placed.describe(),
        facts=(
            Fact(
                "alone, 1,000 and 128,000 tokens",
                f"{shown_time(alone[1000])} and"
                f" {shown_time(alone[128000])}: {shown_times(growth)} as long",
            ),
            Fact(
                f"8 at once, 1,000 and {n_last:,}",
                f"{shown_time(eight[1000])} and"
                f" {shown_time(eight[n_last])}: {shown_times(eight[n_last] / eight[1000])} as"
                " long",
            ),
            Fact(
                "the cache is as large as the weights at",
                f"{even:,.0f} tokens of all requests together",
            ),
        ),
        verdict=Verdict(
            "holds with a condition" if growth > 1.05 else "wrong as stated",
            "It grows with the tokens of all requests together, once those are many: below some"
            f" {even // 9000 * 1000:,.0f} the weights are nine tenths of what a step reads. Alone,"
            f" 1,000 or 8,000 tokens of context differ by {alone[8000] / alone[1000] - 1:.0%}.",
        ),
        plot=Curves(curves=curves, x_title="tokens of context of each", y_title="ms a token"),
        figures={
            "growth": growth,
            "even": even,
            "alone_1000": alone[1000],
            "alone_8000": alone[8000],
        },
    )


def _observe_tpot(bench: LiveBench) -> Observed:
    with bench.engine(max_num_batched_tokens=2**15) as engine:
        longest = fitting_length(engine, 8192)
        lengths = [max(32, longest // part) for part in (64, 8, 1)]
        times = {n: decode_seconds(engine, 1, n) for n in lengths}
    first, last = lengths[0], lengths[-1]
    return Observed(
        facts=tuple(
            Fact(f"behind {n:,} tokens", f"{shown_time(seconds)} a token")
            for n, seconds in times.items()
        ),
        text=f"{last // first} times the context, {shown_times(times[last] / times[first])} the"
        " time for a token: a small model's cache soon outgrows its weights.",
        figures={f"{n}": seconds for n, seconds in times.items()},
    )


CLAIMS = (
    FieldClaim(
        name="long-prompt-stall",
        text="A prompt of 32,000 tokens stalls everyone for 500 ms.",
        source="why chunked prefill exists, as talks tell it",
        compute=_stall,
        observe=_observe_stall,
    ),
    FieldClaim(
        name="chunked-prefill",
        text="Chunked prefill bounds that stall: 8 chunks of 1,024 in place of one step.",
        source="Agrawal et al., Sarathi-Serve (OSDI 2024)",
        compute=_chunks,
        observe=_observe_chunks,
    ),
    FieldClaim(
        name="ttft-and-prompt",
        text="TTFT grows with the prompt.",
        source="every text on serving",
        compute=_ttft,
        observe=_observe_ttft,
    ),
    FieldClaim(
        name="tpot-and-context",
        text="TPOT grows with the context.",
        source="every text on serving",
        compute=_tpot,
        observe=_observe_tpot,
    ),
)
