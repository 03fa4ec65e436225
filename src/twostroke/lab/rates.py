"""Claims on arithmetic: which rate counts, and what a prompt takes in decode steps."""

from __future__ import annotations

from twostroke.lab.claim import (
    Bars,
    Computed,
    Fact,
    FieldClaim,
    Observed,
    Verdict,
    judge_all,
    judge_range,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import LiveBench, decode_seconds, fitting_length, prompt_seconds
from twostroke.lab.machine import product_seconds
from twostroke.lab.numbers import shown_range, shown_time, shown_times

TERA = 1e12
CLAIMED_FLOPS = 1979e12
CLAIMED_STEPS = (5.0, 10.0)


def _dense() -> Computed:
    placed = Placed("llama-3.1-70b", "h100", 4)
    tokens = 4096
    sheet, model = placed.cost.hardware, placed.cost.model
    dense = sheet.dense_flops["bf16"]
    flops = model.prefill_flops(tokens) / placed.tp
    estimate = placed.prompt(tokens)
    reached = flops / estimate.seconds
    name = judge_range(CLAIMED_FLOPS, dense, dense)
    return Computed(
        on=placed.describe(),
        facts=(
            Fact("data sheet, dense", f"{dense / TERA:.4g} TFLOP/s"),
            Fact(
                "claimed",
                f"{CLAIMED_FLOPS / TERA:.4g} TFLOP/s, {shown_times(CLAIMED_FLOPS / dense)} as much",
            ),
            Fact(
                f"a prompt of {tokens:,} tokens, simulated",
                shown_range(estimate.seconds, estimate.low, estimate.high),
            ),
            Fact(
                "each device computes",
                f"{reached / TERA:.3g} TFLOP/s: {reached / dense:.0%} of"
                f" the dense rate, {reached / CLAIMED_FLOPS:.0%} of the claimed one",
            ),
        ),
        verdict=Verdict(
            name,
            f"The larger figure needs two zeros in each four weights, which models as they are"
            f" served do not have. Dense it is {dense / TERA:.0f} TFLOP/s, and a long prompt"
            f" reaches {reached / dense:.0%} of that. Who plans with the larger one buys half of"
            " what is needed.",
        ),
        plot=Bars(
            values=[
                ("claimed", CLAIMED_FLOPS / TERA),
                ("data sheet, dense", dense / TERA),
                ("reached", reached / TERA),
            ],
            title="TFLOP/s in bf16",
        ),
        figures={"dense": dense, "reached": reached},
    )


def _observe_dense(bench: LiveBench) -> Observed:
    dense, zeros = product_seconds(zeros=False), product_seconds(zeros=True)
    return Observed(
        facts=(
            Fact("a product of matrices", shown_time(dense)),
            Fact(
                "with two zeros in each four elements",
                f"{shown_time(zeros)}: {shown_times(dense / zeros)} as fast",
            ),
        ),
        text="Zeros alone make nothing faster: hardware and kernels must skip them.",
        figures={"dense": dense, "zeros": zeros},
    )


RATIO_DEVICES = (
    Placed("llama-3.1-8b", "l40s"),
    Placed("llama-3.1-8b", "h100"),
    Placed("llama-3.1-70b", "h100", 4),
    Placed("llama-3.1-70b", "h200", 2),
    Placed("llama-3.1-8b", "a100"),
)


def _ratio() -> Computed:
    tokens = 1000
    ratios, ideals = {}, {}
    for placed in RATIO_DEVICES:
        sheet, name = placed.cost.hardware, placed.describe()
        ratios[name] = placed.prompt(tokens).seconds / placed.decode(1, tokens).seconds
        ideals[name] = tokens * sheet.memory_bandwidth / sheet.dense_flops["bf16"]
    low, high = min(ratios.values()), max(ratios.values())
    inside = [ratio for ratio in ratios.values() if judge_range(ratio, *CLAIMED_STEPS) == "holds"]
    short = placed_names(RATIO_DEVICES)
    return Computed(
        on=", ".join(sorted({placed.cost.hardware.name for placed in RATIO_DEVICES})),
        facts=tuple(
            Fact(name, f"{ratio:.2g} decode steps ({ideals[name]:.2g} by the data sheet)")
            for name, ratio in ratios.items()
        ),
        verdict=Verdict(
            judge_all(list(ratios.values()), *CLAIMED_STEPS),
            f"It is {low:.2g} to {high:.2g} steps, {len(inside)} of {len(ratios)} about as claimed:"
            " 1,000 times a device's bandwidth over its FLOP/s (2 bytes and 2 FLOPs for each"
            " weight), as far as both are reached. The device decides, and how many share a model.",
        ),
        plot=Bars(values=list(zip(short, ratios.values())), title="decode steps"),
        figures=dict(zip(short, ratios.values())),
    )


def placed_names(all_placed: tuple[Placed, ...]) -> list[str]:
    """Short names for the axis of a plot: ``70b, 4 x h100-sxm``."""
    return [
        f"{placed.model.rpartition('-')[2]}, {placed.tp} x {placed.cost.hardware.name}"
        for placed in all_placed
    ]


def _observe_ratio(bench: LiveBench) -> Observed:
    with bench.engine() as engine:
        tokens = min(1000, fitting_length(engine, 1024))
        prompt, decode = prompt_seconds(engine, tokens), decode_seconds(engine, 1, tokens)
    return Observed(
        facts=(
            Fact(f"a prompt of {tokens:,}", shown_time(prompt)),
            Fact("a decode step", f"{shown_time(decode)}: {prompt / decode:.3g} of them"),
        ),
        text="A processor has far less arithmetic for its bandwidth than a GPU, so prompts cost"
        " it more steps.",
        figures={"prompt": prompt, "decode": decode, "tokens": tokens},
    )


CLAIMS = (
    FieldClaim(
        name="dense-flops",
        text="An H100 computes 1,979 TFLOP/s in bf16.",
        source="the front of NVIDIA's data sheet, whose footnote says: with sparsity",
        compute=_dense,
        observe=_observe_dense,
    ),
    FieldClaim(
        name="prefill-or-decode",
        text="A prompt of 1,000 tokens takes as long as 5 to 10 decode steps.",
        source="a rule of thumb for how long a prompt holds up those who read",
        compute=_ratio,
        observe=_observe_ratio,
    ),
)
