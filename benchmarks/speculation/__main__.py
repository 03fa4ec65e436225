"""Every method beside none: acceptance, tokens a pass, and how much sooner tokens come.

    python -m benchmarks.speculation            # pilot's function in 306 M parameters
    python -m benchmarks.speculation pilot      # pilot itself

Answers to the bank's held-out questions, and answers to be said again, at temperatures 0 and 0.7,
with 1, 4 and 16 requests at once. All engines are loaded; in each round every one gets the same
requests, in turn, and each answer must be that without speculation. The depth chooses itself.
Writes speculation_MODEL.json, .md and .png.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.speculation.rounds import Round, Summary, engines, in_turn, summarize
from benchmarks.speculation.tasks import TASKS, Messages
from benchmarks.speculation.widened import Widening, widened
from twostroke.core.errors import TwostrokeError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.model_spec.model_files import resolve_model
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate

RESULTS = Path(__file__).parents[1] / "results"
METHODS = ("ngram", "suffix", "draft", "early-exit", "medusa")
# A draft model that is right nine times in ten may look further ahead than four tokens.
DEPTHS = {"draft": {"num_speculative_tokens": 10}}
# What the issue of speculation asks for, at one request and temperature 0.
ASKED = {
    "widened": {
        ("questions", "draft"): 3.0,
        ("questions", "early-exit"): 1.3,
        ("questions", "medusa"): 1.8,
        ("copying", "ngram"): 3.0,
        ("copying", "suffix"): 3.0,
    },
    "pilot": {("questions", "draft"): 1.5},
}
Measured = dict[tuple[str, float, int, str], Summary]


def main(
    model: str = "widened",
    *,
    methods: tuple[str, ...] = METHODS,
    tasks: tuple[str, ...] = tuple(TASKS),
    temperatures: tuple[float, ...] = (0.0, 0.7),
    concurrency: tuple[int, ...] = (1, 4, 16),
    rounds: int = 5,
    max_tokens: int = 96,
    config: str = "{}",
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: `widened`, or `pilot`.
        methods: Of `--speculation`; one that cannot run here is left out, and named.
        rounds: How often each is measured; medians are reported. One round before is not counted.
        max_tokens: Most tokens of an answer; most end sooner.
        config: More settings of `--speculative-config` for all methods, as JSON.
        out: Folder for the record.
    """
    say = _Progress()
    folder = str(widened("pilot")) if model == "widened" else model
    variants, left_out = _variants(model, methods, config)
    for name, reason in left_out.items():
        say(f"{name} is left out: {reason}")
    other_programs = OtherPrograms()
    measured: Measured = {}
    with engines(folder, variants, kv_cache_memory=2**29, max_model_len=1024) as loaded:
        for task in tasks:
            for temperature in temperatures:
                for count in concurrency:
                    by_name = _measure(loaded, task, temperature, count, rounds, max_tokens)
                    for name, each in by_name.items():
                        if name != "none":
                            summary = summarize(each, by_name["none"])
                            measured[task, temperature, count, name] = summary
                            say(_line(task, temperature, count, name, summary))
    where = environment(
        shlex.join(["python", "-m", "benchmarks.speculation", *sys.argv[1:]]),
        other_programs.share(),
    )
    _write(measured, model, left_out, rounds, where, out)


class _Progress:
    def __call__(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _variants(
    model: str, methods: Sequence[str], config: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Settings of each engine by name, none first; and what cannot run, with the reason."""
    variants: dict[str, dict[str, Any]] = {"none": {}}
    left_out = {}
    for method in methods:
        settings = {"method": method, **DEPTHS.get(method, {}), **json.loads(config)}
        try:
            if method == "draft":
                settings["model"] = str(resolve_model("pilot-draft"))
            if method == "medusa":
                resolve_model("pilot-medusa")
                heads = widened("pilot-medusa") if model == "widened" else "pilot-medusa"
                settings["model"] = str(heads)
            SpeculationConfig(speculative_config=json.dumps(settings))
        except TwostrokeError as error:
            left_out[method] = error.message
            continue
        variants[method] = {"speculative_config": json.dumps(settings)}
    return variants, left_out


def _measure(
    loaded: Mapping[str, LLMEngine],
    task: str,
    temperature: float,
    count: int,
    rounds: int,
    max_tokens: int,
) -> dict[str, list[Round]]:
    by_name: dict[str, list[Round]] = {name: [] for name in loaded}
    for number in range(rounds + 1):
        prompts = [encode(loaded["none"], messages) for messages in TASKS[task](number, count)]
        params = [
            SamplingParams(
                temperature=temperature,
                seed=1000 * number + index,
                max_tokens=max_tokens if number else 24,
                detokenize=False,
            )
            for index in range(len(prompts))
        ]
        done = in_turn(loaded, number, prompts, params)
        if number:
            for name, each in done.items():
                by_name[name].append(each)
    return by_name


def encode(engine: LLMEngine, messages: Messages) -> list[int]:
    """A conversation as the model reads it."""
    assert engine.tokenizer is not None
    template = ChatTemplate(engine.tokenizer.chat_templates["default"])
    return ChatEncoder(template, engine.tokenizer).encode(messages, add_generation_prompt=True)


def _line(task: str, temperature: float, count: int, name: str, one: Summary) -> str:
    acceptance = "none drafted" if one.acceptance is None else f"{one.acceptance:.0%} accepted"
    differ = "" if one.same_tokens else ", OTHER TOKENS"
    return (
        f"{task}, temperature {temperature:g}, {count} requests, {name}: {one.speedup:.2f}x"
        f" ({min(one.speedups):.2f} to {max(one.speedups):.2f}), {acceptance},"
        f" {one.tokens_per_pass:.2f} tokens a pass{differ}"
    )


def _write(
    measured: Measured,
    model: str,
    left_out: Mapping[str, str],
    rounds: int,
    where: dict[str, Any],
    out: Path,
) -> None:
    rows = [
        "| task | T | requests | method | accepted | a pass | TPOT | none's | faster, x | asked |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for (task, temperature, count, name), one in measured.items():
        acceptance = "-" if one.acceptance is None else f"{one.acceptance:.2f}"
        asked = ASKED.get(model, {}).get((task, name)) if (temperature, count) == (0, 1) else None
        verdict = ""
        if asked is not None:
            verdict = f"{asked:g}x {'met' if one.speedup >= asked else 'MISSED'}"
        rows.append(
            f"| {task} | {temperature:g} | {count} | {name} | {acceptance} |"
            f" {one.tokens_per_pass:.2f} | {one.tpot_ms:.2f} | {one.plain_tpot_ms:.2f} |"
            f" {one.speedup:.2f} ({min(one.speedups):.2f} to {max(one.speedups):.2f}) | {verdict} |"
        )
    missing = "".join(f"- {name} was left out: {reason}\n" for name, reason in left_out.items())
    size = Widening()
    what = (
        f"pilot's function in a model {size.width} times as wide and {size.depth} times as deep\n"
        "  (benchmarks/speculation/widened.py)"
        if model == "widened"
        else model
    )
    differ = [
        f"{task}, {name}" for (task, _, _, name), one in measured.items() if not one.same_tokens
    ]
    tokens = (
        f"OTHER TOKENS than none: {'; '.join(differ)}" if differ else "same tokens in every row"
    )
    text = (
        f"{environment_text(where)}- model: {what}\n- medians of {rounds} rounds in turn, the"
        f" extremes in brackets; times in ms; {tokens}\n{missing}\n" + "\n".join(rows)
    )
    record = {
        "environment": where,
        "left_out": left_out,
        "figures": [
            {"task": task, "temperature": temperature, "requests": count, "method": name}
            | asdict(one)
            for (task, temperature, count, name), one in measured.items()
        ],
    }
    path = out / f"speculation_{model}"
    write_record(path, "Speculation beside none", text, record)
    _draw(measured, path.with_suffix(".png"))
    print(text)


def _draw(measured: Measured, path: Path) -> None:
    """One panel for each task and temperature: speed-up over requests, a line for each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((task, temperature) for task, temperature, _, _ in measured))
    names = list(dict.fromkeys(name for *_, name in measured))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.6 * len(panels), 3.4), sharey=True, squeeze=False
    )
    for axis, (task, temperature) in zip(axes[0], panels):
        for name in names:
            line = [
                (count, one.speedup)
                for (t, heat, count, own), one in measured.items()
                if (t, heat, own) == (task, temperature, name)
            ]
            axis.plot(*zip(*line), marker="o", label=name)
        axis.axhline(1.0, color="gray", linewidth=0.8)
        axis.set_title(f"{task}, temperature {temperature:g}", fontsize=9)
        axis.set_xlabel("requests at once")
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({count for _, _, count, _ in measured}))
        axis.xaxis.set_major_formatter("{x:g}")
    axes[0][0].set_ylabel("TPOT without / with")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    cyclopts.run(main)
