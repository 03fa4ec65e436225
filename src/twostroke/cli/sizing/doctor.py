"""``twostroke doctor``."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.cli.flags import CacheFlags, SchedulerFlags, TierFlags, flag_section
from twostroke.cli.sizing.simulate import DeploymentFlags, WorkloadFlags
from twostroke.cli.terminal import print_error, print_note
from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, TwostrokeError
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.doctor.options import DoctorOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

if TYPE_CHECKING:
    from twostroke.core.targets import Target
    from twostroke.doctor.diagnose import Diagnosis
    from twostroke.doctor.imbalance import RouterFacts
    from twostroke.doctor.machine import Finding
    from twostroke.doctor.window import RecordedSettings, StepWindow
    from twostroke.simulator.scenario import Scenario

# Exit codes: a target is missed, or the machine is not as wanted; what was given cannot be read.
EXIT_MISSED, EXIT_BAD_INPUT = 1, 2

# What a server's address without http:// looks like; no model's name has a port.
ADDRESS = re.compile(r"^(localhost|[\w.-]+:\d+|\[[0-9a-fA-F:.]+\](:\d+)?)(/.*)?$")

Progress = Callable[[str, int, int], None]
DoctorFlags = Annotated[DoctorOptions, flag_section("Diagnosis", 0)]


def doctor(
    subject: str | None = None,
    /,
    *,
    simulate_: Annotated[bool, Parameter(name="--simulate", negative="")] = False,
    options: DoctorFlags | None = None,
    deployment: DeploymentFlags | None = None,
    workload: WorkloadFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    cache: CacheFlags | None = None,
    tiers: TierFlags | None = None,
) -> int:
    """Say what binds a server, and which flag helps, proven by replaying its own traffic.

    Changes nothing. Without SUBJECT, or with a model, it looks at this machine. Exit code 1: a
    target is missed, or the machine is not as it should be; 2: what was given cannot be read.

    Example: twostroke doctor http://localhost:8000 --target ttft=p95:0.3

    Args:
        subject: A server's URL; a recording of `twostroke serve --record`; with --simulate the
            model; else a model that is to fit this machine.
        simulate_: Simulate a deployment, as `twostroke simulate` does with the same flags.
    """
    options = options or DoctorOptions()
    try:
        if simulate_:
            scenario = _scenario(subject, deployment, workload, scheduler, cache, tiers)
            return _repeat(options, lambda show: _look_simulated(scenario, options, show))
        if any((deployment, workload, cache, tiers)):
            raise ConfigError(
                "flags of a deployment, a workload, or a KV cache need --simulate",
                hint="add --simulate, or leave them out: a server and a recording have their own",
            )
        given = _given(scheduler)
        if subject is not None and subject.lower().startswith(("http://", "https://")):
            return _repeat(options, lambda show: _look_live(subject, options, show))
        if subject is not None and _is_recording(subject):
            path = Path(subject)
            return _repeat(options, lambda show: _look_recorded(path, given, options, show))
        if subject is not None and ADDRESS.match(subject):
            raise ConfigError(
                f"{subject} is no file and no model", hint=f"for a server, write http://{subject}"
            )
        return _repeat(options, lambda show: _look_machine(subject, options, show))
    except TwostrokeError as error:
        print_error(error.message, error.hint)
        return EXIT_BAD_INPUT


def _repeat(options: DoctorOptions, look: Callable[[Progress], int]) -> int:
    """Look once, or with ``--watch`` again and again until Ctrl-C; the last code counts.

    What the first look cannot read ends it, but for a server that has no traffic yet. Later looks
    say so, and go on: traffic pauses, and servers restart.
    """
    looks = 0
    while True:
        try:
            with _progress() as show:
                code = look(show)
        except TwostrokeError as error:
            if not looks and (options.watch is None or not _is_lull(error)):
                raise
            print_error(error.message, error.hint)
            code = EXIT_BAD_INPUT
        looks += 1
        if options.watch is None:
            return code
        sys.stdout.flush()
        try:
            time.sleep(options.watch)
        except KeyboardInterrupt:
            return code
        print(f"\n---- {time.strftime('%H:%M:%S')}" if not options.json else "", flush=True)


def _is_lull(error: TwostrokeError) -> bool:
    """Whether a live server has had no requests, yet or of late."""
    from twostroke.doctor.live import LULL, NO_TRAFFIC

    return error.hint in (LULL, NO_TRAFFIC)


def _is_recording(subject: str) -> bool:
    """Whether it names a file of steps, and not a model's configuration."""
    path = Path(subject)
    return path.suffix == ".jsonl" or (path.is_file() and path.suffix != ".json")


def _look_live(url: str, options: DoctorOptions, show: Progress) -> int:
    from twostroke.doctor.live import LiveServer

    with LiveServer(url) as server:
        show("reading steps", 0, 1)
        windows, fleet = server.windows(options.window)
        targets: list[tuple[Target, bool | None]] = [(each, None) for each in options.targets()]
        if not targets:
            targets = [(target, missed) for target, missed in server.targets() if not target.key]
    return _diagnose(windows, targets, options, show, fleet=fleet)


def _look_recorded(
    path: Path, given: RecordedSettings, options: DoctorOptions, show: Progress
) -> int:
    from twostroke.doctor.recordings import read_windows

    show("reading steps", 0, 1)
    windows = read_windows(path, given, options.window)
    if windows[0].settings.max_num_seqs is None:
        print_note("the recording does not tell --max-num-seqs: give it as the server had it")
    return _diagnose(windows, [(each, None) for each in options.targets()], options, show)


def _look_simulated(scenario: Scenario, options: DoctorOptions, show: Progress) -> int:
    from twostroke.doctor.simulated import simulated_windows
    from twostroke.simulator.simulate import count_requests

    total, ended = count_requests(scenario), 0

    def advance(count: int) -> None:
        nonlocal ended
        ended += count
        show("simulating", ended, total)

    windows, block_bytes = simulated_windows(scenario, advance)
    targets = [(each, None) for each in options.targets()]
    return _diagnose(windows, targets, options, show, block_bytes)


def _diagnose(
    windows: list[StepWindow],
    targets: list[tuple[Target, bool | None]] | list[tuple[Target, None]],
    options: DoctorOptions,
    show: Progress,
    block_bytes: int = 0,
    fleet: RouterFacts | None = None,
) -> int:
    from twostroke.doctor.diagnose import diagnose
    from twostroke.doctor.imbalance import ALIKE

    diagnosis = diagnose(
        windows,
        targets,
        fleet=fleet or ALIKE,
        proof=options.proof,
        block_bytes=block_bytes,
        progress=show,
    )
    _write(diagnosis, options)
    return EXIT_MISSED if diagnosis.is_missed else 0


def _write(diagnosis: Diagnosis, options: DoctorOptions) -> None:
    from twostroke.doctor.json_text import diagnosis_json
    from twostroke.doctor.report import print_diagnosis

    if options.json:
        print(diagnosis_json(diagnosis))
    else:
        print_diagnosis(diagnosis, sys.stdout)


def _look_machine(model: str | None, options: DoctorOptions, show: Progress) -> int:
    from twostroke.doctor.machine import check_machine, findings_fields

    findings = check_machine(model, show)
    if options.json:
        print(json.dumps({"machine": findings_fields(findings)}, indent=1))
    else:
        _print_findings(findings)
    return 0 if all(finding.is_good for finding in findings) else EXIT_MISSED


def _print_findings(findings: list[Finding]) -> None:
    from twostroke.doctor.report import wrapped

    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "ok " if finding.is_good else "LOW"
        wanted = f" (wanted: {finding.expected})" if finding.expected else ""
        text = f"{mark} {finding.name:{width}}  {finding.measured}{wanted}"
        print("\n".join(wrapped(text, 0)))
        if not finding.is_good:
            print("\n".join(wrapped(finding.command, 6)))


def _scenario(
    model: str | None,
    deployment: DeploymentOptions | None,
    workload: SimulatedWorkloadOptions | None,
    scheduler: SchedulerOptions | None,
    cache: CacheConfig | None,
    tiers: KVTierConfig | None,
) -> Scenario:
    from dataclasses import replace

    from twostroke.simulator.scenario import Scenario

    deployment = deployment or DeploymentOptions()
    if model is not None:
        if deployment.model not in (model, DeploymentOptions().model):
            raise ConfigError(
                f"SUBJECT is {model}, but --model is {deployment.model}",
                hint="give the model once",
            )
        deployment = replace(deployment, model=model)
    return Scenario(
        deployment=deployment,
        workload=workload or SimulatedWorkloadOptions(),
        scheduler=scheduler or SchedulerOptions(),
        cache=cache or CacheConfig(),
        tiers=tiers or KVTierConfig(),
    )


def _given(scheduler: SchedulerOptions | None) -> RecordedSettings:
    """What the flags say of a recorded server."""
    from twostroke.doctor.window import RecordedSettings

    given = scheduler or SchedulerOptions()
    return RecordedSettings(
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_prefill_chunk=given.max_prefill_chunk,
        policy=given.policy or "fcfs",
        batching=given.batching,
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr while it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    with Bars(
        console=console, disable=not console.is_terminal, transient=True, refresh_per_second=8
    ) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(
            task, description=what, completed=done, total=total
        )
