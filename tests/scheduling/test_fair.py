"""Protects: tenants that wait get equal shares, and idling saves up no credit."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import VOCAB
from tests.scheduling.harness import Harness, expected_output, make_request
from twostroke.core.config import PolicyName, SchedulerConfig
from twostroke.core.request import FinishReason, Request
from twostroke.scheduling.policies.fair import FairPolicy
from twostroke.scheduling.scheduler import Scheduler

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
LONGEST_PROMPT, LONGEST_OUTPUT = 12, 8


class Meter:
    """What each tenant was given, counted from plans and outputs and not by the policy."""

    def __init__(self) -> None:
        self.served: dict[str, float] = defaultdict(float)
        self._computed: Counter[str] = Counter()

    def step(self, harness: Harness) -> None:
        before = {
            r.request_id: (r, r.num_output_tokens) for r in harness.scheduler.requests.values()
        }
        harness.step()
        for request_id, item in harness.last.scheduled.items():
            request, num_outputs = before[request_id]
            end = min(item.start + item.num_tokens, request.num_prompt_tokens)
            new = max(0, end - max(item.start, self._computed[request_id]))
            self._computed[request_id] = max(self._computed[request_id], end)
            outputs = request.num_output_tokens - num_outputs
            self.served[request.tenant] += INPUT_WEIGHT * new + OUTPUT_WEIGHT * outputs


def waiting_tenants(scheduler: Scheduler) -> set[str]:
    """Those with a request in the queue; samples that are held until their prompt is computed are
    not in it.
    """
    waiting = (r for r in scheduler.requests.values() if r.request_id not in scheduler.running)
    return {r.tenant for r in waiting if r.leader is None}


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[SchedulerConfig, int, bool, list[Request]]:
    """Two or three tenants with many requests each, all there from the start; blocks are mostly
    scarce.
    """
    config = SchedulerConfig(
        max_num_batched_tokens=draw(st.sampled_from([1, 5, 16, 40])),
        max_num_seqs=draw(st.integers(1, 5)),
        max_prefill_chunk=draw(st.none() | st.integers(1, 8)),
        policy="fair",
    )
    random = draw(st.randoms(use_true_random=False))
    requests = []
    for tenant in "abc"[: draw(st.integers(2, 3))]:
        longest = draw(st.integers(1, LONGEST_PROMPT))
        for number in range(draw(st.integers(4, 16))):
            prompt = [random.randrange(VOCAB) for _ in range(random.randint(1, longest))]
            output = random.randint(1, LONGEST_OUTPUT)
            leader = None
            for index in range(random.choice([1, 1, 1, 2])):
                name = f"{tenant}{number}#{index}"
                requests.append(
                    make_request(name, prompt, output, leader=leader, seed=index, tenant=tenant)
                )
                leader = leader or requests[-1]
    return config, draw(st.sampled_from([6, 8, 12, 30])), draw(st.booleans()), requests


@settings(max_examples=150, deadline=None)
@given(backlogs())
def test_tenants_that_wait_get_equal_shares(
    backlog: tuple[SchedulerConfig, int, bool, list[Request]],
) -> None:
    """Theorem 4.8 of the paper for our charging: while both wait, they differ by no more than what
    can run at once.
    """
    config, num_blocks, caching, requests = backlog
    harness, meter = Harness(config, num_blocks, caching), Meter()
    for request in requests:
        harness.scheduler.add(request)
    prompts = {r.request_id: list(r.token_ids) for r in requests}
    bound = config.max_num_seqs * (INPUT_WEIGHT * LONGEST_PROMPT + OUTPUT_WEIGHT * LONGEST_OUTPUT)
    always_waited = waiting_tenants(harness.scheduler)
    while harness.scheduler.has_work():
        meter.step(harness)
        always_waited &= waiting_tenants(harness.scheduler)
        served = [meter.served[tenant] for tenant in always_waited]
        assert not served or max(served) - min(served) <= bound
    for request in requests:
        assert request.output_token_ids == expected_output(request, prompts[request.request_id])


class ChargesOnly(FairPolicy):
    """Keeps what was charged apart from what tenants were lifted by."""

    def __init__(self) -> None:
        super().__init__(INPUT_WEIGHT, OUTPUT_WEIGHT)
        self.charged: dict[str, float] = defaultdict(float)

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        super().charge(request, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self.charged[request.tenant] += INPUT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


@settings(max_examples=100, deadline=None)
@given(backlogs(), st.data())
def test_the_counters_are_what_was_served(
    backlog: tuple[SchedulerConfig, int, bool, list[Request]], data: st.DataObject
) -> None:
    """Each token is charged once: not again after a preemption, not for an aborted rest, a shared
    prompt once.
    """
    config, num_blocks, caching, requests = backlog
    policy = ChargesOnly()
    harness, meter = Harness(config, num_blocks, caching, policy=policy), Meter()
    for request in requests:
        harness.scheduler.add(request)
    doomed = data.draw(
        st.lists(st.sampled_from([r.request_id for r in requests]), max_size=4, unique=True)
    )
    steps = 0
    while harness.scheduler.has_work():
        if steps % 3 == 2 and doomed:
            harness.scheduler.finish(doomed.pop(), FinishReason.ABORT, harness.now)
        if harness.scheduler.has_work():
            meter.step(harness)
        steps += 1
    assert {name: cost for name, cost in policy.charged.items() if cost} == meter.served


def test_a_request_is_charged_for_what_it_got() -> None:
    """Prompt once, outputs as they come, nothing for what the cache held."""
    harness = Harness(SchedulerConfig(policy="fair"))
    policy = harness.scheduler.policy
    assert isinstance(policy, FairPolicy)
    prompt = list(range(1, 14))
    harness.scheduler.add(make_request("first", prompt, 5, tenant="a"))
    harness.run()
    assert policy.counters == {"a": 13 + 2 * 5}
    harness.scheduler.add(make_request("second", prompt, 5, tenant="a"))
    harness.run()
    assert policy.counters == {"a": (13 + 2 * 5) + (1 + 2 * 5)}


def test_weights_are_those_of_the_configuration() -> None:
    harness = Harness(SchedulerConfig(policy="fair", fair_input_weight=0.5, fair_output_weight=3.0))
    policy = harness.scheduler.policy
    assert isinstance(policy, FairPolicy)
    harness.scheduler.add(make_request("only", [1, 2, 3, 4], 2, tenant="a"))
    harness.run()
    assert policy.counters == {"a": 0.5 * 4 + 3.0 * 2}


def test_idling_saves_up_no_credit() -> None:
    """A tenant that comes back after a long time takes turns with the one that was there.

    It is not served alone until it has caught up.
    """
    harness, meter = Harness(SchedulerConfig(policy="fair", max_num_seqs=1)), Meter()
    for number in range(40):
        harness.scheduler.add(make_request(f"a{number}", [number + 1] * 4, 4, tenant="a"))
    while meter.served["a"] < 240:
        meter.step(harness)
    for number in range(12):
        harness.scheduler.add(make_request(f"b{number}", [1, number + 1, 2, 3], 4, tenant="b"))
    before = dict(meter.served)
    order: list[str] = []
    while "b" in waiting_tenants(harness.scheduler):
        meter.step(harness)
        order += [name for name in harness.last.scheduled if name not in order]
    new = [name[0] for name in order if int(name[1:]) >= 20 or name[0] == "b"]
    assert "bbb" not in "".join(new) and "aaa" not in "".join(new)
    assert meter.served["b"] <= (meter.served["a"] - before["a"]) + 2 * (4 + 2 * 4)


def test_a_tenant_without_service_goes_first() -> None:
    """Lifted to the counter of those that wait, it still goes before them."""
    harness = Harness(SchedulerConfig(policy="fair", max_num_batched_tokens=3))
    for number in range(5):
        harness.scheduler.add(make_request(f"a{number}", [1, 2, 3], 2, tenant="a"))
    harness.step()
    harness.scheduler.add(make_request("b", [4, 5, 6], 2, tenant="b"))
    order: list[str] = []
    while harness.scheduler.has_work():
        harness.step()
        order += [name for name in harness.last.scheduled if name not in order]
    assert order[:3] == ["a0", "b", "a1"]


def test_a_shortage_of_blocks_hits_the_tenant_served_most() -> None:
    """Also if it came first."""
    harness = Harness(SchedulerConfig(policy="fair", max_num_seqs=3), num_blocks=9)
    harness.scheduler.add(make_request("a0", [1] * 9, 14, tenant="a"))
    harness.scheduler.add(make_request("a1", [2] * 9, 14, tenant="a"))
    harness.scheduler.add(make_request("b", [3] * 9, 14, tenant="b"))
    victims = []
    while harness.scheduler.has_work():
        harness.step()
        victims += [d.request_id for d in harness.last.decisions if d.reason.value == "preempted"]
    assert victims and victims[0] == "a1"
    assert "b" not in victims


def test_within_a_tenant_the_order_is_that_of_arrival() -> None:
    orders = []
    policies: tuple[PolicyName, ...] = ("fcfs", "fair")
    for policy in policies:
        harness = Harness(SchedulerConfig(policy=policy, max_num_seqs=2))
        for number in range(6):
            harness.scheduler.add(make_request(str(number), [number + 1, 2, 3], number % 3 + 1))
        harness.run()
        orders.append(harness.plans)
    assert orders[0] == orders[1]
