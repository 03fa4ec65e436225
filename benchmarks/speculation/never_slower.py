"""What speculation costs where nothing can be guessed: text drawn at random.

    python -m benchmarks.speculation.never_slower [MODEL]

Random prompts, and answers drawn at a temperature at which every token is about as likely as any
other. Each method, with the depth that chooses itself, takes turns with none. So does a second
engine without speculation: how far its ratio is from 1 is what this machine cannot tell apart.
Writes never_slower_MODEL.json and .md.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks import make_checkpoint
from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.speculation.rounds import Round, Summary, engines, in_turn, summarize
from twostroke.core.sampling_params import SamplingParams

RESULTS = Path(__file__).parents[1] / "results"
TEMPERATURE, PROMPT, ALLOWED = 5.0, 64, 0.98
CONTROL = "none again"


def main(
    model: str = "pilot",
    *,
    methods: tuple[str, ...] = ("ngram", "suffix", "draft", "early-exit", "medusa"),
    concurrency: tuple[int, ...] = (1, 4, 16, 64),
    rounds: int = 9,
    output_len: int = 200,
    draft: str = "pilot-draft",
    medusa: str = "pilot-medusa",
    out: Path = RESULTS,
) -> None:
    """Measure and record.

    Args:
        model: `pilot`, a folder, or `10m` or `350m`: a random checkpoint made for the run, without
            methods draft and medusa.
        methods: Of `--speculation`.
        rounds: How often each is measured; the first, short one is not counted.
        output_len: Tokens of an answer.
        draft: The draft model.
        medusa: The folder of the heads.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    beside = {"draft": draft, "medusa": medusa}
    with ExitStack() as stack:
        folder = model
        if model in make_checkpoint.SIZES:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="twostroke-random-"))
            with redirect_stdout(sys.stderr):
                make_checkpoint.main(model, folder)
            methods = tuple(method for method in methods if method not in beside)
        variants: dict[str, dict[str, Any]] = {"none": {}, CONTROL: {}}
        for method in methods:
            settings = {"method": method, **({"model": beside[method]} if method in beside else {})}
            variants[method] = {"speculative_config": json.dumps(settings)}
        loaded = stack.enter_context(
            engines(folder, variants, kv_cache_memory=2**29, max_model_len=1024)
        )
        measured: dict[tuple[int, str], Summary] = {}
        vocabulary = loaded["none"].info.vocab_size
        for count in concurrency:
            by_name: dict[str, list[Round]] = {name: [] for name in loaded}
            for number in range(rounds + 1):
                draw = random.Random(f"{count} {number}")
                prompts = [draw.choices(range(300, vocabulary), k=PROMPT) for _ in range(count)]
                params = [
                    SamplingParams(
                        temperature=TEMPERATURE,
                        seed=draw.randrange(2**32),
                        max_tokens=output_len if number else 32,
                        ignore_eos=True,
                        detokenize=False,
                    )
                    for _ in range(count)
                ]
                done = in_turn(loaded, number, prompts, params)
                for name in loaded if number else ():
                    by_name[name].append(done[name])
            for name in loaded:
                if name != "none":
                    measured[count, name] = one = summarize(by_name[name], by_name["none"])
                    print(_line(count, name, one), file=sys.stderr, flush=True)
    where = environment(
        shlex.join(["python", "-m", "benchmarks.speculation.never_slower", *sys.argv[1:]]),
        other_programs.share(),
    )
    _write(measured, Path(model).name, rounds, output_len, where, out)


def _line(count: int, name: str, one: Summary) -> str:
    return (
        f"{count} requests, {name}: TPOT {1 / one.speedup:.3f} of none's"
        f" ({1 / max(one.speedups):.3f} to {1 / min(one.speedups):.3f}),"
        f" throughput {one.throughput_ratio:.3f}, {one.tokens_per_pass:.3f} tokens a pass"
    )


def _write(
    measured: dict[tuple[int, str], Summary],
    model: str,
    rounds: int,
    output_len: int,
    where: dict[str, Any],
    out: Path,
) -> None:
    rows = [
        "| requests | method | TPOT / none's | extremes | throughput / none's | within 2 % |"
        " same tokens |",
        "|---:|---|---:|---|---:|---|---|",
    ]
    for (count, name), one in measured.items():
        within = min(one.speedup, one.throughput_ratio) >= ALLOWED
        rows.append(
            f"| {count} | {name} | {1 / one.speedup:.3f} | {1 / max(one.speedups):.3f} to"
            f" {1 / min(one.speedups):.3f} | {one.throughput_ratio:.3f} |"
            f" {'yes' if within else 'NO'} | {'yes' if one.same_tokens else 'NO'} |"
        )
    text = (
        f"{environment_text(where)}- model {model}; random prompts of {PROMPT} tokens, {output_len}"
        f" drawn at temperature {TEMPERATURE:g}; medians of {rounds} rounds, in turn\n- `{CONTROL}`"
        " is a second engine without speculation: what this machine cannot tell apart\n\n"
        + "\n".join(rows)
    )
    figures = [
        {"requests": count, "method": name, **asdict(one)}
        for (count, name), one in measured.items()
    ]
    path = out / f"never_slower_{model}"
    write_record(
        path, "Text that cannot be guessed", text, {"environment": where, "figures": figures}
    )
    print(text)


if __name__ == "__main__":
    cyclopts.run(main)
