"""Protects: what a meter counts of a run is what happened, pauses and aborts included."""

from __future__ import annotations

import pytest

from tests.fakes import FakeExecutor
from tests.scheduling.harness import BLOCK, make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import FinishReason
from twostroke.engine.engine import Engine
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.scheduling.assemble import assemble_scheduler


class Run:
    """An engine of few places, on a clock that a step moves by a tenth of a second."""

    def __init__(self, max_num_seqs: int = 1) -> None:
        self.now = 0.0
        config = SchedulerConfig(admission="predicted", max_num_seqs=max_num_seqs)
        made = assemble_scheduler(config, KVCacheManager(64, BLOCK), None)
        self.meter = LoadMeter(made.scheduler, made.times)
        self.executor = FakeExecutor(64, BLOCK)
        self.engine = Engine(
            made.scheduler, self.executor, [self.meter], clock=lambda: round(self.now, 6)
        )

    def add(self, name: str) -> None:
        self.engine.add([make_request(name, [1, 2, 3], 4)])

    def step(self) -> None:
        self.engine.step()
        self.now += 0.1


def test_nobody_waited_through_a_pause() -> None:
    """All clients leave while a request waits for its place; the next one comes an hour later."""
    run = Run()
    for name in ("a", "b"):
        run.add(name)
    for _ in range(3):
        run.step()
    run.engine.end([*run.engine.scheduler.requests.values()], FinishReason.ABORT)
    run.now += 3600.0
    for name in ("c", "d"):
        run.add(name)
    for _ in range(12):
        run.step()
    assert 0 < run.meter.load.seconds_per_entry < 5


def test_entries_are_counted_while_requests_wait() -> None:
    """Of four steps each, with a tenth of a second between them."""
    run = Run()
    for number in range(12):
        run.add(str(number))
    for _ in range(40):
        run.step()
    assert run.meter.load.seconds_per_entry == pytest.approx(0.4, rel=0.15)


def test_samples_that_share_a_prompt_are_no_sign_of_cached_prompts() -> None:
    """The next call's prompt has to be computed, however many samples the last one had."""
    run = Run(max_num_seqs=8)
    for number in range(4):
        prompt = [number + 1] * 20
        leader = make_request(f"{number}", prompt)
        samples = [make_request(f"{number}#{i}", prompt, leader=leader) for i in range(1, 8)]
        run.engine.add([leader, *samples])
        while run.engine.has_work():
            run.step()
    assert run.meter.load.expected_work("", 100).tokens == 100
