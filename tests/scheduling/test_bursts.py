"""Protects: a tenant that sends several requests at once gets its share beside an endless flood.

One attack call of 1,024 samples used to starve a key that sent two requests at once: its debt for
the first place that it took outlived the place, and was not paid by waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.fakes import next_token
from tests.scheduling.harness import Harness, make_request
from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import Reason

NUM_SEATS, NUM_SAMPLES, ENDLESS = 16, 32, 1000
WARM_UP = 40  # steps: so many tokens are lost with a sample that is displaced


@dataclass
class BurstRun:
    """Every place is a flooding tenant's, some way into its answers; then bursts of others."""

    caching: bool
    samples: list[Request] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    num_displaced: int = 0
    num_light: int = 0

    def __post_init__(self) -> None:
        config = SchedulerConfig(policy="fair", max_num_seqs=NUM_SEATS, max_num_batched_tokens=256)
        self.harness = Harness(config, 700, self.caching)
        self.samples = [
            make_request(f"a{i}", [1 + i % 8], ENDLESS, tenant="a", seed=i)
            for i in range(NUM_SAMPLES)
        ]
        for sample in self.samples:
            self.harness.scheduler.add(sample)
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        self.harness.step()
        for decision in self.harness.last.decisions:
            if decision.reason is Reason.PREEMPTED:
                self.num_displaced += 1
                assert decision.request_id[0] == "a" and decision.by is not None

    def send(self, count: int, output: int, tenant: str = "b") -> list[Request]:
        sent = []
        for _ in range(count):
            prompt = [9, 1 + self.num_light % 20, 7]
            sent.append(make_request(f"{tenant}{self.num_light}", prompt, output, tenant=tenant))
            sent[-1].arrival_time = self.harness.now
            self.harness.scheduler.add(sent[-1])
            self.num_light += 1
        return sent

    def answer(self, sent: list[Request], limit: int) -> None:
        """Step until all are answered, at most ``limit`` times."""
        for _ in range(limit):
            if all(request.finish_time is not None for request in sent):
                break
            self.step()
        for request in sent:
            assert request.finish_time is not None, "still not answered"
            assert request.first_scheduled_time is not None
            self.waits.append(request.first_scheduled_time - request.arrival_time)

    def num_running(self) -> dict[str, int]:
        names = [request.tenant for request in self.harness.scheduler.running.values()]
        return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize(
    ("count", "output", "caching"),
    [(2, 1, True), (3, 1, False), (8, 1, True), (3, 12, True), (8, 12, False)],
)
def test_bursts_are_answered_beside_endless_samples(count: int, output: int, caching: bool) -> None:
    """Again and again; each displaces one sample at most, and what is displaced goes on."""
    run = BurstRun(caching)
    for _ in range(4):
        run.answer(run.send(count, output), limit=60)
        run.step()
    assert max(run.waits) <= 3 * count + 4
    assert run.num_displaced <= run.num_light
    displaced = [sample for sample in run.samples if sample.num_preemptions]
    assert displaced
    for sample in displaced[:2]:
        tokens = sample.token_ids[:1]
        while len(tokens) < sample.num_tokens:
            tokens.append(next_token(tokens, sample.spec.seed))
        assert tokens == sample.token_ids


@pytest.mark.parametrize(
    ("tenants", "shares"), [("b", {"a": 8, "b": 8}), ("bc", {"a": 6, "b": 5, "c": 5})]
)
def test_each_tenant_gets_its_share_of_the_places(tenants: str, shares: dict[str, int]) -> None:
    """And keeps it: once each has its share, nothing is displaced any more."""
    run = BurstRun(caching=False)
    for tenant in tenants:
        run.send(NUM_SEATS, ENDLESS, tenant)
    for _ in range(60):
        run.step()
    assert run.num_running() == shares
    assert run.num_displaced == NUM_SEATS - shares["a"]


def test_a_continuous_light_load_leaves_the_flood_its_share() -> None:
    """Eight requests at once, each sent anew when it is answered: the flood keeps running."""
    run = BurstRun(caching=False)
    before = sum(sample.num_output_tokens for sample in run.samples)
    light = run.send(8, 1)
    steps = 80
    for _ in range(steps):
        run.step()
        answered = [request for request in light if request.finish_time is not None]
        light = [request for request in light if request.finish_time is None]
        light += run.send(len(answered), 1)
    new_tokens = sum(sample.num_output_tokens for sample in run.samples) - before
    assert new_tokens >= steps * NUM_SEATS / 2
    assert run.num_light >= steps / 2


def plans(caching: bool) -> Iterator[bytes]:
    run = BurstRun(caching)
    for _ in range(2):
        run.answer(run.send(3, 2), limit=60)
    yield from run.harness.plans


def test_the_same_bursts_give_the_same_plans() -> None:
    assert list(plans(True)) == list(plans(True))
