"""Protects: a simulated model with recurrent layers hits exactly where the live engine hits."""

from __future__ import annotations

from random import Random

import pytest

from tests.runtime.mixed_models import ask, engine_of, hybrid_spec, random_model, run
from tests.simulator.fleets import LinearCost
from twostroke.core.config import SchedulerConfig
from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.models.decoder import Decoder
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.requests import make_request
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.simulator.workloads.sessions import SYSTEM_PROMPT

NUM_ROUNDS, NUM_SESSIONS = 14, 6


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(hybrid_spec())


class Both:
    """The same conversations with a live engine and with a simulated one, turn by turn."""

    def __init__(self, model: Decoder, seed: int) -> None:
        self.random = Random(seed)
        config = SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=3)
        self.live = engine_of(
            model,
            num_blocks=self.random.choice([40, 60, 120]),
            num_slots=self.random.choice([3, 6, 12, 30]),
            scheduler=config,
        )
        clock = VirtualClock()
        executor = SimulatedExecutor(self.live.info, LinearCost(), clock)
        self.simulated = Replica(executor, config)
        self.clock, self.num_asked = clock, 0
        self.system = [self.random.randrange(3, 90) for _ in range(11)]
        self.num_begun = 0
        self.texts = [self.begin() for _ in range(NUM_SESSIONS)]
        self.hits: list[tuple[PrefixHit | None, PrefixHit | None]] = []

    def begin(self) -> list[int]:
        """A conversation whose first token after the system prompt no other one has there."""
        self.num_begun += 1
        return [*self.system, 2 + self.num_begun]

    def take_round(self) -> None:
        """Some of the sessions ask their next question, at once."""
        random, params = self.random, SamplingParams(ignore_eos=True, detokenize=False)
        sessions = random.sample(range(NUM_SESSIONS), random.randrange(1, 4))
        simulated: list[Request] = []
        for session in sessions:
            if len(self.texts[session]) > 90:
                self.texts[session] = self.begin()
            text = self.texts[session]
            text += [random.randrange(3, 90) for _ in range(random.randrange(1, 12))]
            answer = random.randrange(1, 16)
            self.live.submit(ask(str(session), text, answer))
            own = text[len(self.system)]
            parts = ((SYSTEM_PROMPT, len(self.system)), (own, len(text) + answer))
            spec = RequestSpec(self.num_asked, self.clock.now, len(text), answer, parts)
            first = 10_000 * self.num_asked
            self.num_asked += 1
            simulated.append(make_request(spec, params, 4, first))
        live = watched(self.live)
        answers = run(self.live)
        for request in simulated:
            self.simulated.add(request)
        while self.simulated.has_work():
            self.simulated.run(float("inf"))
        for session, request in zip(sessions, simulated):
            self.texts[session] += answers[str(session)]
            self.hits.append((live[str(session)].prefix_hit, request.prefix_hit))


def watched(engine: LLMEngine) -> dict[str, Request]:
    """The engine's requests by their names, before they run."""
    return {each.spec.parent_id: each for each in engine.scheduler.requests.values()}


def test_simulated_hits_are_the_live_ones(model: Decoder) -> None:
    """Over random conversations, and for each reason there is without tiers and salts."""
    ends: set[PrefixEnd] = set()
    for seed in range(8):
        both = Both(model, seed)
        for _ in range(NUM_ROUNDS):
            both.take_round()
        for live, simulated in both.hits:
            assert live is not None and live == simulated
            ends.add(live.end)
        assert both.live.scheduler.kv.prefix_hits == both.simulated.kv.prefix_hits > 0
        assert both.live.scheduler.kv.pool.num_cached == both.simulated.kv.pool.num_cached
    assert ends == set(PrefixEnd) - {PrefixEnd.NEW_SALT, PrefixEnd.NOT_LOADED}
