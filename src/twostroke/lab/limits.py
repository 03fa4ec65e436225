"""Claims on what one request can get: bytes over bandwidth, FLOPs over rates."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from twostroke.lab.claim import (
    Bars,
    Computed,
    Curves,
    Fact,
    FieldClaim,
    Observed,
    Verdict,
    judge_range,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import (
    LiveBench,
    decode_seconds,
    fitting_length,
    greedy,
    prompt_seconds,
    random_prompt,
    take_step,
    time_to_first_token,
)
from twostroke.lab.machine import product_flops, read_bandwidth
from twostroke.lab.numbers import shown_range, shown_time
from twostroke.model_spec.public_models import find_model

GB, TERA = 1e9, 1e12
CLAIMED_CEILING = 24.0
CLAIMED_PREFILL, PREFILL_TOKENS = 0.2, 1500
CLAIMED_TPOT, CLAIMED_ANSWER, ANSWER_TOKENS = 0.03, 9.2, 300
SEVENTY = Placed("llama-3.1-70b", "h100", 1)
TWO_H200 = Placed("llama-3.1-70b", "h200", 2)


def _ceiling() -> Computed:
    sheet, weights = SEVENTY.cost.hardware, SEVENTY.cost.model.weight_bytes()
    ceiling = sheet.memory_bandwidth / weights
    alone = SEVENTY.decode(1, PREFILL_TOKENS)
    counts = [replace(SEVENTY, tp=tp) for tp in (1, 2, 4, 8)]
    fitting = next(placed for placed in counts if placed.fits)
    reached = 1 / fitting.decode(1, PREFILL_TOKENS).seconds
    batch = 32
    together = batch / fitting.decode(batch, PREFILL_TOKENS).seconds
    name = judge_range(ceiling, CLAIMED_CEILING, CLAIMED_CEILING)
    if name == "holds" and not SEVENTY.fits:
        name = "holds with a condition"
    bars = []
    for placed in counts:
        bars.append((f"{placed.tp} x: ceiling", placed.tp * ceiling))
        bars.append((f"{placed.tp} x: simulated", 1 / placed.decode(1, PREFILL_TOKENS).seconds))
    return Computed(
        on=SEVENTY.describe(),
        facts=(
            Fact(
                "bandwidth over weights",
                f"{sheet.memory_bandwidth / TERA:.3g} TB/s over"
                f" {weights / GB:.4g} GB: {ceiling:.3g} tokens/s",
            ),
            Fact(
                "simulated, if it had the memory",
                f"{1 / alone.seconds:.3g} tokens/s"
                f" ({1 / alone.high:.3g} to {1 / alone.low:.3g}), bound by {alone.binding}",
            ),
            Fact(
                "memory of the device",
                f"{sheet.memory_bytes / GB:.3g} GB: the weights"
                f" {'fit' if SEVENTY.fits else 'do not fit'}",
            ),
            Fact(
                f"{fitting.tp} devices, which hold them",
                f"at most {fitting.tp * ceiling:.3g} tokens/s, simulated {reached:.3g}",
            ),
            Fact(f"{batch} requests at once on those", f"{together:,.0f} tokens/s together"),
        ),
        verdict=Verdict(
            name,
            f"The arithmetic is right, for one request. But {weights / GB:.0f} GB do not fit"
            f" {sheet.memory_bytes / GB:.0f} GB: it takes {fitting.tp} devices, whose ceiling is"
            f" {fitting.tp * ceiling:.3g} tokens/s, of which {reached:.3g} are reached. Requests"
            f" that run at once share each read: {batch} get {together:,.0f} tokens/s.",
        ),
        plot=Bars(values=bars, title="tokens/s of one request"),
        figures={
            "ceiling": ceiling,
            "simulated": 1 / alone.seconds,
            "devices": fitting.tp,
            "reached": reached,
            "together": together,
        },
    )


def _observe_ceiling(bench: LiveBench) -> Observed:
    bandwidth = read_bandwidth()
    with bench.engine() as engine:
        weights = engine.info.weight_bytes
        rate = 1 / decode_seconds(engine, 1, num_steps=64)
    ceiling = bandwidth / weights
    above = rate > ceiling
    return Observed(
        facts=(
            Fact("memory is read with", f"{bandwidth / GB:.3g} GB/s"),
            Fact("weights", f"{weights / 1e6:.4g} MB: a ceiling of {ceiling:,.0f} tokens/s"),
            Fact("one request gets", f"{rate:,.0f} tokens/s, {rate / ceiling:.0%} of it"),
        ),
        text="The weights stay in the processor's cache, so memory does not bound them."
        if above
        else "Below the ceiling: a step does more than read weights, above all on a small model.",
        figures={"ceiling": ceiling, "rate": rate},
    )


def _prefill() -> Computed:
    estimate = TWO_H200.prompt(PREFILL_TOKENS)
    model, sheet = TWO_H200.cost.model, TWO_H200.cost.hardware
    flops = model.prefill_flops(PREFILL_TOKENS)
    least = flops / TWO_H200.tp / sheet.dense_flops["bf16"]
    low = max(estimate.low, least)
    inside = low <= CLAIMED_PREFILL <= estimate.high
    share = least / estimate.seconds
    lengths = (250, 500, 1000, PREFILL_TOKENS, 2000, 3000)
    return Computed(
        on=TWO_H200.describe(),
        facts=(
            Fact(
                "FLOPs",
                f"{flops / TERA:.4g} T on {TWO_H200.tp} x"
                f" {sheet.dense_flops['bf16'] / TERA:.3g} TFLOP/s: {shown_time(least)} at least",
            ),
            # No interval reaches below what the FLOPs take.
            Fact("simulated", shown_range(estimate.seconds, low, estimate.high)),
        ),
        verdict=Verdict(
            "holds" if inside else "wrong as stated",
            f"Alone on the devices it takes {shown_time(estimate.seconds)}:"
            f" {share:.0%} of the dense rate is reached. A queue comes on top.",
        ),
        plot=Curves(
            curves={
                "simulated": [(n, 1e3 * TWO_H200.prompt(n).seconds) for n in lengths],
                "at the full rate": [
                    (n, 1e3 * model.prefill_flops(n) / TWO_H200.tp / sheet.dense_flops["bf16"])
                    for n in lengths
                ],
            },
            x_title="prompt tokens",
            y_title="ms",
            limit=1e3 * CLAIMED_PREFILL,
        ),
        figures={"simulated": estimate.seconds, "least": least, "flops": flops},
    )


def _observe_prefill(bench: LiveBench) -> Observed:
    spec, rate = find_model(bench.model), product_flops()
    with bench.engine() as engine:
        tokens = min(PREFILL_TOKENS, fitting_length(engine, 2048))
        seconds = prompt_seconds(engine, tokens)
    flops = spec.prefill_flops(tokens)
    return Observed(
        facts=(
            Fact(f"{tokens:,} tokens", f"{shown_time(seconds)} for {flops / 1e9:.3g} GFLOP"),
            Fact(
                "reached",
                f"{flops / seconds / 1e9:.3g} GFLOP/s; a plain float32 product reaches"
                f" {rate / 1e9:.3g}",
            ),
        ),
        text="FLOPs over what the device reaches, not over what its data sheet says.",
        figures={"seconds": seconds, "flops": flops, "rate": rate},
    )


def _answer() -> Computed:
    claimed = CLAIMED_PREFILL + ANSWER_TOKENS * CLAIMED_TPOT
    exact = CLAIMED_PREFILL + (ANSWER_TOKENS - 1) * CLAIMED_TPOT
    context = PREFILL_TOKENS + ANSWER_TOKENS // 2
    ttft = TWO_H200.prompt(PREFILL_TOKENS).seconds

    def answer(requests: int) -> float:
        return ttft + (ANSWER_TOKENS - 1) * TWO_H200.decode(requests, context).seconds

    counts = (1, 8, 16, 32, 48, 64, 96, 128)
    most = max(n for n in range(1, 257) if TWO_H200.decode(n, context).seconds <= CLAIMED_TPOT)
    name = judge_range(exact, CLAIMED_ANSWER, CLAIMED_ANSWER)
    return Computed(
        on=TWO_H200.describe(),
        facts=(
            Fact("200 ms and 300 times 30 ms", shown_time(claimed)),
            Fact("the prompt gives the first token, so 299 times", f"{exact:.2f} s"),
            Fact(
                "simulated, alone",
                f"{shown_time(answer(1))}:"
                f" {shown_time(ttft)} and {shown_time(TWO_H200.decode(1, context).seconds)} a"
                " token",
            ),
            Fact("30 ms a token is", f"{most} requests at once, prompts not counted"),
        ),
        verdict=Verdict(
            name,
            f"{1 - CLAIMED_PREFILL / exact:.0%} of the time is decode, so TPOT decides. Alone it"
            f" is {shown_time(answer(1))}; 30 ms a token is a server with some {most} requests.",
        ),
        plot=Curves(
            curves={"simulated": [(n, answer(n)) for n in counts]},
            x_title="requests that decode at once",
            y_title="seconds for the answer",
            limit=CLAIMED_ANSWER,
        ),
        figures={"claimed": claimed, "exact": exact, "alone": answer(1), "requests": most},
    )


def _observe_answer(bench: LiveBench) -> Observed:
    with bench.engine() as engine:
        tokens = min(PREFILL_TOKENS, fitting_length(engine, 1024))
        answer = ANSWER_TOKENS if tokens >= 1024 else 100
        prompt = random_prompt(random.Random(0), engine, tokens)
        ttft = time_to_first_token(engine, greedy("first", prompt, 1))
        tpot = decode_seconds(engine, 1, tokens + answer // 2)
        began = time.perf_counter()
        engine.submit(greedy("whole", prompt, answer))
        while engine.has_work():
            take_step(engine)
        whole = time.perf_counter() - began
    predicted = ttft + (answer - 1) * tpot
    return Observed(
        facts=(
            Fact(f"prompt of {tokens:,}, and a token", f"{shown_time(ttft)}, {shown_time(tpot)}"),
            Fact(f"so {answer} tokens take", shown_time(predicted)),
            Fact("they took", f"{shown_time(whole)} ({whole / predicted - 1:+.0%})"),
        ),
        text="TTFT and TPOT add up to the whole."
        if abs(whole / predicted - 1) < 0.25
        else "The parts do not add up: the machine did something else meanwhile.",
        figures={"predicted": predicted, "whole": whole},
    )


CLAIMS = (
    FieldClaim(
        name="decode-ceiling",
        text="Decode of a 70B model in fp16 on one H100 is bounded by 3.35 TB/s over 140 GB:"
        " 24 tokens/s.",
        source="inference arithmetic, as in talks and posts on what a GPU can serve",
        compute=_ceiling,
        observe=_observe_ceiling,
    ),
    FieldClaim(
        name="prefill-time",
        text="A prompt of 1,500 tokens takes a 70B model on two H200 about 200 ms.",
        source="sizing examples: 2 FLOPs for each weight and token, over the data sheet's FLOP/s",
        compute=_prefill,
        observe=_observe_prefill,
    ),
    FieldClaim(
        name="answer-time",
        text="An answer of 300 tokens at 30 ms each, after 200 ms, takes 9.2 s.",
        source="sizing examples: TTFT and tokens times TPOT",
        compute=_answer,
        observe=_observe_answer,
    ),
)
