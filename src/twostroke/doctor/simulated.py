"""Windows of a simulated run: what the doctor would say of a deployment before it exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twostroke.doctor.window import RecordedSettings, StepWindow, make_window
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.scenario import Scenario, deploy_scenario
from twostroke.simulator.simulate import simulate


def simulated_windows(
    scenario: Scenario, progress: Callable[[int], None] = lambda _: None
) -> tuple[list[StepWindow], int]:
    """The windows of all replicas that had requests, and what a KV block takes.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: See ``simulate``.
    """
    kept = [KeptEvents() for _ in range(scenario.deployment.replicas)]
    simulate(scenario, observers=[[events] for events in kept], progress=progress)
    _, deployment = deploy_scenario(scenario)
    scheduler, info = deployment.scheduler, deployment.info
    settings = RecordedSettings(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_prefill_chunk=scheduler.max_prefill_chunk,
        policy=scheduler.policy,
        batching=scheduler.batching,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        has_drafts=scenario.deployment.resolve_speculation() is not None,
    )
    windows = [
        make_window(
            scenario.deployment.model if len(kept) == 1 else f"replica {number}",
            events.events,
            settings=replace(settings),
        )
        for number, events in enumerate(kept)
        if any(event.started for event in events.events)
    ]
    return windows, int(info.kv_bytes_per_token * info.block_size)
