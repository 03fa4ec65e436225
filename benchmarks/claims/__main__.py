"""Measure the claims; data on stdout, progress on stderr.

    python -m benchmarks.claims [NAME ...]

A run of all of them is recorded in ``benchmarks/claims/results``; a run of some is only printed.
``field`` are the claims of others, as ``twostroke lab`` tries them: their page is always recorded.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import cyclopts

from benchmarks.claims import (
    break_even,
    chunked_prefill,
    continuous_batching,
    field,
    kv_cache,
    kv_tiers,
    kv_waste,
    prefix_caching,
    scaled_cache,
    window,
)
from benchmarks.claims.report import Claim, keep_recorded, write_claims
from benchmarks.claims.workbench import Workbench, default_model
from benchmarks.environment import OtherPrograms, environment

MEASURES: dict[str, Sequence[Callable[[Workbench], Claim]]] = {
    "continuous_batching": (continuous_batching.measure, continuous_batching.measure_same_model),
    "kv_cache": (kv_cache.measure,),
    "prefix_caching": (prefix_caching.measure,),
    "chunked_prefill": (chunked_prefill.measure,),
    "kv_waste": (kv_waste.measure,),
    "scaled_cache": (scaled_cache.measure,),
    "window": (window.measure,),
    "swap": (kv_tiers.measure_swap,),
    "warm_start": (kv_tiers.measure_warm_start,),
    "break_even": (break_even.measure, break_even.measure_memory_bound),
}
# Without the variable nothing is looked for: a folder of this name is not there.
TRACES = Path(os.environ.get("TWOSTROKE_DATA", "$TWOSTROKE_DATA")) / "traces"
RESULTS = Path(__file__).parent / "results"


def main(
    *names: str,
    model: str | None = None,
    checkpoint: str | None = None,
    data: Path = TRACES,
    rounds: int = 3,
    out: Path = RESULTS,
) -> None:
    """Measure the claims and print one line for each.

    Args:
        names: Which ones, by the names of their scripts; all by default.
        model: What to run on: pilot by default, or a random checkpoint of its size where there is
            no pilot.
        checkpoint: A model too large for the CPU's cache, for the claim on continuous batching: by
            default a random one of 350 M parameters, made for the run
            (benchmarks/make_checkpoint.py; 0.7 GB in the temporary folder).
        data: Folder of the Azure traces, by default traces in $TWOSTROKE_DATA (CONTRIBUTING.md:
            where they come from).
        rounds: How often each is measured.
        out: Folder for the record.
    """
    if unknown := [name for name in names if name not in (*MEASURES, field.NAME)]:
        known = ", ".join((*MEASURES, field.NAME))
        sys.exit(f"error: no claim {unknown[0]!r}\n\nhint: there are {known}")
    own = [name for name in names if name != field.NAME] if names else list(MEASURES)
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - began:4.0f} s] {text}", file=sys.stderr, flush=True)

    all_along = OtherPrograms()
    claims: list[Claim] = []
    with default_model(model) as (source, name):
        bench = Workbench(source, name, rounds, data, say, checkpoint)
        for measure in (measure for chosen in own for measure in MEASURES[chosen]):
            other_programs = OtherPrograms()
            claim = measure(bench)
            claims.append(
                replace(
                    claim, figures={**claim.figures, "others_cpu_share": other_programs.share()}
                )
            )
            print(claim.line(), flush=True)
        if not names or field.NAME in names:
            other_programs = OtherPrograms()
            tried = field.try_claims(bench)
            field.write_page(tried, environment(_command(), other_programs.share()), out)
            for each in tried:
                verdict = each.experiment.computed.verdict.name
                print(f"{each.experiment.claim.text} | {verdict}", flush=True)
            say(f"recorded in {out / field.NAME}.md")
    if own and names:
        say("of our own claims nothing is recorded, since only a run of all is")
    if names:
        return
    share = all_along.share()
    claims = keep_recorded(claims, out)
    write_claims(
        claims,
        environment(_command(), share),
        out,
    )
    say(
        f"recorded in {out}"
        + (f"; others took {share:.1%} of the CPU time" if share is not None else "")
    )


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.claims", *sys.argv[1:]])


if __name__ == "__main__":
    cyclopts.run(main)
