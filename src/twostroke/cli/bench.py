"""``twostroke bench serve`` and ``twostroke bench offline``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import App, Group, Parameter

from twostroke.bench.options import OfflineBenchOptions, ServeBenchOptions, WorkloadOptions
from twostroke.cli.flags import (
    CacheFlags,
    ModelFlags,
    SchedulerFlags,
    SpeculationFlags,
    engine_config,
    shown_default,
)
from twostroke.cli.terminal import one_line
from twostroke.core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twostroke.bench.metrics import RequestRecord
    from twostroke.bench.server_verdict import ServerVerdict
    from twostroke.bench.workload import WorkItem
    from twostroke.core.output import RequestOutput
    from twostroke.engine.llm_engine import LLMEngine

WorkloadFlags = Annotated[
    WorkloadOptions,
    Parameter(
        name="*", group=Group("Workload", sort_key=1), negative_iterable=(), negative_bool=()
    ),
]
ServeBenchFlags = Annotated[
    ServeBenchOptions,
    Parameter(
        name="*",
        group=Group("Run", sort_key=2),
        negative_iterable=(),
        negative_bool=(),
        consume_multiple=True,
        show_default=shown_default,
    ),
]
OfflineBenchFlags = Annotated[
    OfflineBenchOptions, Parameter(name="*", group=Group("Run", sort_key=0), negative_iterable=())
]


def bench_app() -> App:
    """The group of benchmarks."""
    app = App(
        name="bench",
        usage="Usage: twostroke bench COMMAND",
        help="Measure a server, or the engine alone.",
        help_format="plaintext",
    )
    app.command(serve, usage="Usage: twostroke bench serve [OPTIONS]")
    app.command(offline, usage="Usage: twostroke bench offline [MODEL] [OPTIONS]")
    return app


def serve(*, workload: WorkloadFlags | None = None, run: ServeBenchFlags | None = None) -> int:
    """Send a workload to an OpenAI-compatible server and report latencies, throughput and goodput.

    Prompts are token ids, so their lengths are exact. Flags and definitions are those of `vllm
    bench serve`. The report goes to stdout, progress and failures to stderr. The exit code is 0 if
    every request succeeded, else 1.
    """
    import asyncio

    import uvloop

    from twostroke.bench.metrics import summarize
    from twostroke.bench.report import (
        describe_failures,
        print_serve_report,
        serve_report,
        write_json,
    )
    from twostroke.bench.workload import make_warmups, make_work_items

    workload, run = workload or WorkloadOptions(), run or ServeBenchOptions()
    items = make_work_items(workload)
    began = datetime.now(UTC)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        work = run_workload(items, make_warmups(workload, items[0], run.num_warmups), run)
        model, records, duration, verdicts = runner.run(work)
    metrics = summarize(records, duration, run.goodput_targets(), run.percentiles())
    failures = describe_failures(records)
    if run.output_json is not None:
        setting = {
            **asdict(workload),
            **asdict(run),
            "model_id": model,
            "date": began.isoformat(timespec="seconds"),
        }
        write_json(run.output_json, serve_report(metrics, records, setting, verdicts))
    if not metrics.completed:
        raise EngineError(
            f"all {metrics.failed} requests failed: {failures[0]}", hint="see the server's log"
        )
    print_serve_report(metrics, sys.stdout, verdicts)
    for line in failures:
        print(f"failed: {one_line(line)}", file=sys.stderr)
    if uncounted := sum(record.error is None and not record.counted for record in records):
        print(
            f"{uncounted} answers came without usage: each of their events counts as one token",
            file=sys.stderr,
        )
    return 1 if failures else 0


class Measured(NamedTuple):
    """The model's name, a record of each request, seconds, and what the server's targets say."""

    model: str
    records: list[RequestRecord]
    duration: float
    verdicts: list[ServerVerdict]


async def run_workload(
    items: list[WorkItem], warmups: list[WorkItem], options: ServeBenchOptions
) -> Measured:
    """Run a workload; progress on stderr."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from twostroke.bench.client import Bench
    from twostroke.bench.server_verdict import compare_verdicts

    async with Bench(options) as bench:
        model = await bench.model()
        await bench.warm_up(warmups)
        before = await bench.targets() if options.goodput else {}
        console = Console(stderr=True)
        # Drawn twice a second: it shares the event loop's interpreter lock with what is timed.
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(
            *columns, console=console, disable=not console.is_terminal, refresh_per_second=2
        ) as progress:
            task = progress.add_task(escape(model), total=len(items))
            records, duration = await bench.run(items, lambda _: progress.advance(task))
        after = await bench.targets() if options.goodput else {}
    return Measured(model, records, duration, compare_verdicts(before, after, records))


def offline(
    model: str | None = None,
    /,
    *,
    run: OfflineBenchFlags | None = None,
    model_options: ModelFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    speculation: SpeculationFlags | None = None,
) -> None:
    """Measure the engine alone, without HTTP: tokens per second, and how long steps take.

    The report goes to stdout, progress to stderr.

    Args:
        model: `pilot` (embedded, the default), a local folder or GGUF file, or a Hugging Face Hub
            id; the same as --model.
    """
    from rich.console import Console
    from rich.progress import Progress

    from twostroke.bench.offline import OfflineProfile, run_offline
    from twostroke.bench.report import (
        offline_report,
        print_offline_report,
        print_profile,
        write_json,
    )
    from twostroke.observability.profile import NO_PROFILE, StepProfiler
    from twostroke.startup import load_engine

    run = run or OfflineBenchOptions()
    config = engine_config(model, model_options, cache, scheduler, speculation=speculation)
    began = datetime.now(UTC)
    profiler = StepProfiler() if run.profile else None
    engine = load_engine(config, profiler=profiler or NO_PROFILE)
    console = Console(stderr=True)
    try:
        with Progress(
            console=console, disable=not console.is_terminal, refresh_per_second=2
        ) as progress:
            task = progress.add_task(config.model.model, total=run.num_prompts)
            profile = OfflineProfile(profiler, stream_events(engine)) if profiler else None
            result = run_offline(
                engine, run, config.model.seed or 0, lambda: progress.advance(task), profile
            )
    finally:
        engine.close()
    if run.output_json is not None:
        setting = {
            **asdict(run),
            **asdict(engine.config),
            "date": began.isoformat(timespec="seconds"),
        }
        write_json(run.output_json, offline_report(result, setting))
    print_offline_report(result, sys.stdout)
    if run.profile:
        print_profile(result, sys.stdout)


def stream_events(engine: LLMEngine) -> Callable[[RequestOutput], bytes]:
    """Makes of an output what a server streams to a client of ``/v1/completions``."""
    from twostroke.server.generation.response_format import CallTokens
    from twostroke.server.openai.text_completions.answer import CompletionResponseFormat
    from twostroke.server.openai.text_completions.prompt import CompletionPrompt
    from twostroke.server.openai.text_completions.request import CompletionRequest

    assert engine.tokenizer is not None
    name = engine.config.model.model
    body = CompletionRequest.model_validate({"model": name, "prompt": [0]})
    prompts = [CompletionPrompt([0], "")]
    answer = CompletionResponseFormat("bench", name, engine.tokenizer, body, prompts)
    tokens = CallTokens(prompt=1, completion=0, cached=[0])
    return lambda output: answer.chunk(0, output, tokens, first=False, last=False)
