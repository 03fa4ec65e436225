"""Draw the token budget and the gaps between tokens over a burst of long prompts.

    python -m benchmarks.overload.burst                       # simulated
    python -m benchmarks.overload.burst --recording FILE      # what ``serve --record FILE`` wrote

Twelve prompts of 8,000 tokens arrive at once among chats, under a tuned and under a fixed budget.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import cyclopts
import msgspec

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.overload.mixes import LONG_PROMPT
from benchmarks.overload.simulated import RESULTS, model_folder
from twostroke.core.config import SchedulerOptions
from twostroke.observability.events import StepEvent
from twostroke.observability.latency import LatencyDistribution
from twostroke.observability.recorder import Recorder
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

BURST, BURST_SIZE, SECONDS = 4.0, 12, 24.0
CHATS_PER_SECOND = 4.0


def main(
    *,
    model: str = "10m",
    tpot_target: float = 0.05,
    recording: Path | None = None,
    out: Path = RESULTS,
) -> None:
    """Make the picture, and record its figures.

    Args:
        model: An embedded model, or 10m or 350m for a checkpoint of that size.
        tpot_target: Of the tuned budget, in seconds.
        recording: Draw this recording instead of simulating.
        out: Folder for picture and record.
    """
    others = OtherPrograms()
    if recording is not None:
        runs = {"recorded": _read(recording)}
    else:
        tuned = SchedulerOptions(tpot_target=tpot_target, max_num_batched_tokens=2048)
        runs = {"tuned": _run(model, tuned), "fixed": _run(model, SchedulerOptions())}
    rows = ["| budget | steps in the burst | gap, median | P99 | longest |", "|---" * 5 + "|"]
    for name, events in runs.items():
        gaps = [event.duration for event in events if _decodes(event) and event.time >= BURST]
        spread = LatencyDistribution.of(gaps, (50, 99))
        rows.append(
            f"| {name} | {len(gaps)} | {1000 * spread.percentiles[50]:.1f} ms |"
            f" {1000 * spread.percentiles[99]:.1f} ms | {1000 * max(gaps):.1f} ms |"
        )
    command = f"python -m benchmarks.overload.burst --model {model} --tpot-target {tpot_target:g}"
    where = environment(command, others.share())
    text = "\n".join([*rows, "", f"![budget and gaps](burst_{model}.png)", ""])
    text += "\n" + environment_text(where)
    record = {"tpot_target": tpot_target, "environment": where, "table": rows}
    write_record(out / f"burst_{model}", f"A burst of long prompts: {model}", text, record)
    _draw(runs, tpot_target, out / f"burst_{model}.png")
    print(text)


def _run(model: str, config: SchedulerOptions) -> list[StepEvent]:
    with tempfile.TemporaryDirectory(prefix="twostroke-burst-") as name:
        folder = Path(name)
        chats = [
            (number / CHATS_PER_SECOND, 128, 96)
            for number in range(int(SECONDS * CHATS_PER_SECOND))
        ]
        rows = sorted(chats + [(BURST, LONG_PROMPT, 8)] * BURST_SIZE)
        lines = [f"{now:.6f},{prompt},{answer}" for now, prompt, answer in rows]
        header = "arrived_at,num_prefill_tokens,num_decode_tokens"
        trace, record = folder / "burst.csv", folder / "steps.jsonl"
        trace.write_text("\n".join([header, *lines]) + "\n")
        scenario = Scenario(
            deployment=DeploymentOptions(model=model_folder(model, folder), gpu="cpu"),
            workload=SimulatedWorkloadOptions(workload="trace", trace_path=trace),
            scheduler=config,
        )
        recorder = Recorder(1, record)
        simulate(scenario, observers=[[recorder]])
        recorder.close()
        return _read(record)


def _read(path: Path) -> list[StepEvent]:
    lines = path.read_text().splitlines()
    return [msgspec.json.decode(line, type=StepEvent) for line in lines]


def _decodes(event: StepEvent) -> bool:
    """Whether its duration is a gap between two tokens of a request."""
    return any(share.sampled and not share.num_prompt_tokens for share in event.scheduled)


def _draw(runs: dict[str, list[StepEvent]], target: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6))
    for name, events in runs.items():
        times = [event.time for event in events]
        above.step(times, [event.token_budget for event in events], where="post", label=name)
        gaps = [event for event in events if _decodes(event)]
        below.plot(
            [event.time for event in gaps],
            [1000 * event.duration for event in gaps],
            ".",
            label=name,
        )
    above.set_ylabel("token budget")
    below.axhline(1000 * target, linestyle="--", linewidth=1, color="black", label="target")
    below.set_ylabel("gap between tokens (ms)")
    below.set_yscale("log")
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    cyclopts.run(main)
