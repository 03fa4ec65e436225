"""A scheduler and a fake executor, and what every request must get from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests import wire
from tests.fakes import FakeExecutor, OpenTiers, next_token
from tests.specs import resolved
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import Reason, StepPlan
from twostroke.engine.engine import Engine
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.kv_cache.states import NO_STATES, States
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.preemption import choose_preemption
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.speculation import FixedDepth
from twostroke.scheduling.tiered_blocks import TieredBlocks

BLOCK = 4


def make_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    *,
    leader: Request | None = None,
    priority: int = 0,
    seed: int = 0,
    tenant: str = "",
    has_form: bool = False,
) -> Request:
    params = SamplingParams(
        max_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
        thinking_token_budget=10**6 if has_form else None,
    )
    spec = resolved(
        request_id,
        list(prompt),
        len(prompt) + max_tokens,
        params=params,
        priority=priority,
        seed=seed,
        tenant=tenant,
    )
    return Request(spec, leader=leader)


def draw_prompt(
    random: Random, shared: list[int], requests: list[Request]
) -> tuple[list[int], Request | None]:
    """A prompt, and the request whose second sample it is, if it is one.

    It begins as others do, is the next turn after one of ``requests``, or is the last one's again.
    """
    prompt = shared[: random.choice([0, 2, 3, 6]) * BLOCK]
    prompt = prompt + [random.randrange(50) for _ in range(random.randrange(1, 9))]
    leader = requests[-1] if requests and random.random() < 0.25 else None
    if leader is not None:
        prompt = leader.token_ids[: leader.num_prompt_tokens]
    elif requests and random.random() < 0.3:
        prompt = [*random.choice(requests).token_ids, *prompt][: 8 * BLOCK]
    return prompt, leader


@dataclass
class Harness:
    """Scheduler and fake executor; every step is checked for integrity and written down.

    With ``ahead`` an engine launches each step before it collects the one before, where it may.
    """

    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_blocks: int = 64
    caching: bool = True
    num_drafts: int = 0
    policy: SchedulingPolicy | None = None
    open_tiers: OpenTiers | None = None
    preemption: PreemptionName = "recompute"
    groups: KVGroups = ONE_GROUP
    num_state_slots: int = 0
    state_spacing: int = 2
    repeat_every: int = 0
    ahead: bool = False
    plans: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = FakeExecutor(
            self.num_blocks,
            BLOCK,
            num_drafts=self.num_drafts,
            open_tiers=self.open_tiers,
            groups=self.groups,
            num_state_slots=self.num_state_slots,
            repeat_every=self.repeat_every,
            runs_ahead=self.ahead,
        )
        states: States = NO_STATES
        if self.num_state_slots:
            states = StateSlots(
                self.num_state_slots,
                BLOCK,
                self.state_spacing,
                self.groups.count,
                enable_prefix_caching=self.caching,
                num_parts=self.executor.info.num_state_parts,
            )
        self.kv = KVCacheManager(
            self.num_blocks,
            BLOCK,
            self.groups,
            states=states,
            enable_prefix_caching=self.caching,
        )
        swaps = self.preemption == "swap"
        self.tiered = TieredBlocks(self.kv, self.executor.info.tiers, always_load_swapped=swaps)
        self.scheduler = Scheduler(
            self.config,
            self.kv,
            choose_policy(self.config) if self.policy is None else self.policy,
            tiers=self.tiered,
            preemption=choose_preemption(self.preemption, self.tiered),
            depth=FixedDepth(self.num_drafts) if self.ahead else None,
        )
        self.now = 0.0
        self.last: StepPlan = StepPlan(0, 0.0)
        self.engine = Engine(self.scheduler, self.executor, clock=lambda: self.now)

    def has_work(self) -> bool:
        return self.engine.has_work() if self.ahead else self.scheduler.has_work()

    def set_aside(self, request_id: str) -> None:
        self.scheduler.waiting.set_aside(self.scheduler.requests[request_id])

    def step(self) -> list[RequestOutput]:
        if self.ahead:
            self.now += 1.0
            outputs = self.engine.step()
            self.kv.check_integrity()
            return outputs
        self.last = self.scheduler.schedule(self.now)
        assert self.last.num_tokens <= self.config.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.config.max_num_seqs
        moves = self.kv.loads or self.last.block_saves or self.last.block_drops
        assert self.last.scheduled or moves, "work waits but nothing was scheduled"
        self.plans.append(wire.encode(self.last))
        result = self.executor.execute(self.last)
        assert set(self.executor.tables) <= set(self.scheduler.running), (
            "a request lost its blocks unannounced"
        )
        self.now += 1.0
        outputs = self.scheduler.update(self.last, result, self.now)
        self.kv.check_integrity()
        return outputs

    def run(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.has_work():
                break
            self.step()
        assert not self.has_work(), "not done within the step limit"
        assert self.kv.pool.num_free == self.num_blocks, "blocks leaked"

    def reasons(self) -> set[Reason]:
        return {decision.reason for decision in self.last.decisions}


def expected_output(request: Request, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(request.params.max_tokens or 0):
        tokens.append(next_token(tokens, request.spec.seed))
    return tokens[len(prompt) :]
