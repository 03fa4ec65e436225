"""Claims on several devices: one model on eight, and prefill and decode apart."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from twostroke.core.errors import ConfigError
from twostroke.lab.apart import best_rate, ninetieth, requests_at, serve_apart, serve_together
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
    judge_range,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import LiveBench, fitting_length, gaps_of_an_arrival, prompt_seconds
from twostroke.lab.numbers import shown_time, shown_times
from twostroke.model_spec.public_models import find_model

CLAIMED_SPEED = (5.0, 6.0)
EIGHT_B, SEVENTY_B, LARGEST = (
    Placed("llama-3.1-8b", "h100"),
    Placed("llama-3.1-70b", "h100"),
    Placed("llama-3.1-405b", "h100"),
)
SEVENTY_ON_4 = Placed("llama-3.1-70b", "h100", 4)
LENGTHS, RATE = (1500, 300), 6.0
RATES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
TIGHT, LOOSE = (1.0, 0.03), (1.0, 0.06)
GIGABIT = 1e9 / 8
LINKS = {
    "NVLink": 450e9,
    "400 Gb/s": 400 * GIGABIT,
    "100 Gb/s": 100 * GIGABIT,
    "25 Gb/s": 25 * GIGABIT,
    "10 Gb/s": 10 * GIGABIT,
}
CHUNK_BUDGET = 512


def _eight() -> Computed:
    speeds: dict[str, tuple[float, float]] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for placed in (EIGHT_B, SEVENTY_B, LARGEST):
        name = placed.model.rpartition("-")[2].upper()
        one, eight = placed, replace(placed, tp=8)
        speeds[name] = (
            one.decode(1, 1500).seconds / eight.decode(1, 1500).seconds,
            one.prompt(2048).seconds / eight.prompt(2048).seconds,
        )
        curves[name] = [
            (tp, one.decode(1, 1500).seconds / replace(placed, tp=tp).decode(1, 1500).seconds)
            for tp in (1, 2, 4, 8)
        ]
    every = [value for pair in speeds.values() for value in pair]
    decode = {name: pair[0] for name, pair in speeds.items()}
    inside = [
        f"{name} {what} ({speed:.2g})"
        for name, pair in speeds.items()
        for what, speed in zip(("decode", "prompts"), pair)
        if judge_range(speed, *CLAIMED_SPEED) == "holds"
    ] or ["none"]
    return Computed(
        on="llama-3.1 8b, 70b and 405b on 1 and 8 x h100-sxm (as if one had the memory)",
        facts=tuple(
            Fact(
                name,
                f"decode {shown_times(pair[0])} as fast, prompts of 2,048 tokens"
                f" {shown_times(pair[1])}",
            )
            for name, pair in speeds.items()
        ),
        verdict=Verdict(
            judge_all(every, *CLAIMED_SPEED),
            f"True of {' and of '.join(inside)}. Eight devices read an eighth of the weights each,"
            " but add up two sums a layer and start as many kernels: an 8B model decodes"
            f" {decode['8B']:.2g} times as fast, 405B {decode['405B']:.2g}. Eight copies of a"
            " model that fits one device serve eight times the requests.",
        ),
        plot=Curves(
            curves=curves, x_title="devices that share the model", y_title="times the decode speed"
        ),
        figures={
            **{f"decode_{name}": pair[0] for name, pair in speeds.items()},
            **{f"prompt_{name}": pair[1] for name, pair in speeds.items()},
        },
    )


def _observe_eight(bench: LiveBench) -> Observed:
    cores = os.cpu_count() or 1
    results = {threads: _offline(bench.model, threads) for threads in sorted({1, cores})}
    decode = {threads: result["median_decode_step_ms"] for threads, result in results.items()}
    prompt = {threads: result["median_prefill_step_ms"] for threads, result in results.items()}
    gains = decode[1] / decode[cores], prompt[1] / prompt[cores]
    return Observed(
        facts=(
            Fact(
                "decode step of 8 requests",
                f"{decode[1]:.3g} ms with 1 core,"
                f" {decode[cores]:.3g} with {cores}: {shown_times(gains[0])} as fast",
            ),
            Fact(
                "their prompts, 8 x 128 tokens",
                f"{prompt[1]:.3g} and {prompt[cores]:.3g} ms: {shown_times(gains[1])}",
            ),
        ),
        text=f"{cores} cores are not {cores} times one either: parts that are divided wait for one"
        " another.",
        figures={"decode": gains[0], "prompt": gains[1]},
    )


def _offline(model: str, threads: int) -> dict[str, Any]:
    """``twostroke bench offline`` in a process with so many threads: its report."""
    with tempfile.TemporaryDirectory(prefix="twostroke-lab-") as folder:
        path = Path(folder) / "offline.json"
        command = [sys.executable, "-m", "twostroke", "bench", "offline", model]
        command += ["--num-prompts", "8", "--input-len", "128", "--output-len", "48"]
        command += ["--output-json", str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": f"{threads}"}
        ended = subprocess.run(command, capture_output=True, env=environment, timeout=120)
        if ended.returncode:
            raise ConfigError(
                f"cannot measure {model} with {threads} threads:"
                f" {_first_error(ended.stderr.decode(errors='replace'))}",
                hint=f"try twostroke bench offline {model}, or leave out --model",
            )
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return report


def _first_error(text: str) -> str:
    """The line of a command's stderr that says what is wrong."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it says nothing"]
    wrong = (line for line in lines if line.startswith("error: "))
    return next(wrong, lines[-1]).removeprefix("error: ")


def _rates_within() -> dict[str, list[float]]:
    """Most requests per second within the tight targets and within the loose ones."""
    ways: dict[str, dict[str, Any]] = {
        "together": {},
        "in chunks": {"budget": CHUNK_BUDGET},
        "apart": {"link": LINKS["400 Gb/s"]},
    }
    return {
        name: [
            best_rate(SEVENTY_ON_4, RATES, LENGTHS, targets, **options)
            for targets in (TIGHT, LOOSE)
        ]
        for name, options in ways.items()
    }


def _apart() -> Computed:
    link = LINKS["400 Gb/s"]
    specs = requests_at(RATE, *LENGTHS)
    runs = {
        "both do everything": serve_together(SEVENTY_ON_4, specs, 8192),
        f"both, steps of {CHUNK_BUDGET}": serve_together(SEVENTY_ON_4, specs, CHUNK_BUDGET),
        "apart": serve_apart(SEVENTY_ON_4, specs, link),
    }
    rates = _rates_within()
    best = [max(rates["together"][n], rates["in chunks"][n]) for n in range(2)]
    wins = [rates["apart"][n] > best[n] for n in range(2)]
    verdict: VerdictName = "wrong as stated"
    if any(wins):
        verdict = "holds" if all(wins) else "holds with a condition"
    labels = [f"TPOT {shown_time(TIGHT[1])}", f"TPOT {shown_time(LOOSE[1])}"]
    return Computed(
        on=f"{SEVENTY_ON_4.describe()}, twice; prompts of {LENGTHS[0]:,} tokens, answers of"
        f" {LENGTHS[1]}; 400 Gb/s between them",
        facts=(
            *(
                Fact(
                    f"{RATE:g} requests/s, {name}",
                    "TTFT P90"
                    f" {shown_time(ninetieth([each.ttft for each in served]))}, TPOT P90"
                    f" {shown_time(ninetieth([each.tpot for each in served]))}",
                )
                for name, served in runs.items()
            ),
            *(
                Fact(
                    f"requests/s within TTFT 1 s, {label}",
                    ", ".join(f"{name} {values[n]:g}" for name, values in rates.items()),
                )
                for n, label in enumerate(labels)
            ),
        ),
        verdict=Verdict(
            verdict,
            f"Where TPOT must be short: within {shown_time(TIGHT[1])} they serve"
            f" {rates['apart'][0]:g} requests/s apart and {best[0]:g} together. Within"
            f" {shown_time(LOOSE[1])} it is {rates['apart'][1]:g} and {best[1]:g}: a device that"
            " only computes prompts or only decodes is full before the other is. TTFT is longer"
            " apart, since one device has all prompts.",
        ),
        plot=Bars(
            values=[
                (f"{name}, {label.removeprefix('TPOT ')}", values[n])
                for n, label in enumerate(labels)
                for name, values in rates.items()
            ],
            title="requests/s within TTFT 1 s and a TPOT",
        ),
        figures={
            f"{name}_{kind}": values[n]
            for n, kind in enumerate(("tight", "loose"))
            for name, values in rates.items()
        },
    )


def _observe_apart(bench: LiveBench) -> Observed:
    with bench.engine(max_num_seqs=8) as engine:
        length = fitting_length(engine, 8192)
        gaps = gaps_of_an_arrival(engine, length)
    return Observed(
        facts=(
            Fact("4 requests decode, worst gap", shown_time(gaps.quiet)),
            Fact(f"with a prompt of {length:,} beside", shown_time(gaps.worst)),
        ),
        text=f"An engine of their own for prompts would save its readers up to"
        f" {shown_time(gaps.worst - gaps.quiet)}. Two real engines are in the notes on several"
        " processes.",
        figures={"quiet": gaps.quiet, "worst": gaps.worst},
    )


def _links() -> Computed:
    specs = requests_at(RATE, *LENGTHS)
    together = ninetieth([each.tpot for each in serve_together(SEVENTY_ON_4, specs, CHUNK_BUDGET)])
    tpots = {
        name: ninetieth([each.tpot for each in serve_apart(SEVENTY_ON_4, specs, link)])
        for name, link in LINKS.items()
    }
    per_token = SEVENTY_ON_4.cost.model.kv_bytes_per_token("bf16")
    needed = per_token * LENGTHS[0] * RATE
    worse = [name for name, tpot in tpots.items() if tpot > together]
    seconds = {name: per_token * LENGTHS[0] / link for name, link in LINKS.items()}
    holds = 0 < len(worse) < len(LINKS)
    slowest = [name for name in LINKS if name not in worse]
    return Computed(
        on=f"{SEVENTY_ON_4.describe()}, twice; {RATE:g} requests/s",
        facts=(
            Fact(
                "a prompt's keys and values",
                f"{per_token * LENGTHS[0] / 1e6:,.0f} MB; {needed / 1e9:.3g} GB/s at this rate",
            ),
            Fact(f"together, steps of {CHUNK_BUDGET}", f"TPOT P90 {shown_time(together)}"),
            *(
                Fact(
                    f"apart, {name}",
                    f"TPOT P90 {shown_time(tpot)}; a prompt crosses in {shown_time(seconds[name])}",
                )
                for name, tpot in tpots.items()
            ),
        ),
        verdict=Verdict(
            "holds" if holds else "wrong as stated",
            f"The link must carry {needed / 1e9:.2g} GB/s ({needed / GIGABIT:.0f} Gb/s) for these"
            f" prompts: {slowest[-1] if slowest else 'none'} is enough,"
            f" {' or '.join(worse) if worse else 'nothing'} is slower than not to divide. A link"
            " that carries less than what comes in has a queue that grows without end.",
        ),
        plot=Bars(
            values=[
                ("together", 1e3 * together),
                *((name, 1e3 * min(tpot, 5 * together)) for name, tpot in tpots.items()),
            ],
            title="TPOT P90, ms (cut at five times)",
        ),
        figures={"together": together, "needed": needed, **tpots},
    )


def _observe_links(bench: LiveBench) -> Observed:
    per_token = find_model(bench.model).kv_bytes_per_token("bf16")
    with bench.engine(max_num_batched_tokens=2**15) as engine:
        length = fitting_length(engine, 2048)
        compute = prompt_seconds(engine, length)
    size = round(per_token * length)
    moved = _send(size)
    slowest = size / compute
    return Observed(
        facts=(
            Fact(
                f"a prompt of {length:,}", f"{size / 1e6:.3g} MB, computed in {shown_time(compute)}"
            ),
            Fact("through a socket of this machine", shown_time(moved)),
            Fact(
                "a link is slower than to compute again",
                f"below {slowest / 1e6:,.0f} MB/s ({slowest / GIGABIT:.2g} Gb/s)",
            ),
        ),
        text="Where arithmetic is slow, even a slow link moves a prompt sooner than it is"
        " computed.",
        figures={"bytes": size, "compute": compute, "moved": moved, "slowest": slowest},
    )


def _send(size: int) -> float:
    """Seconds in which so many bytes go through a pair of sockets."""
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=left.sendall, args=(bytes(size),))
        began = time.perf_counter()
        sender.start()
        remaining = size
        while remaining:
            remaining -= len(right.recv(min(remaining, 2**20)))
        sender.join()
        return time.perf_counter() - began


CLAIMS = (
    FieldClaim(
        name="eight-devices",
        text="Eight devices are 5 to 6 times as fast as one.",
        source="a rule of thumb for tensor parallelism",
        compute=_eight,
        observe=_observe_eight,
    ),
    FieldClaim(
        name="disaggregation",
        text="Prefill and decode on devices of their own serve more than both on all.",
        source="Zhong et al., DistServe (OSDI 2024)",
        compute=_apart,
        observe=_observe_apart,
    ),
    FieldClaim(
        name="slow-links",
        text="A slow link negates what prefill and decode apart gain.",
        source="Patel et al., Splitwise (ISCA 2024), and warnings since",
        compute=_links,
        observe=_observe_links,
    ),
)
