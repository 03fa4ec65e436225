"""Protects: what keys are billed and what they share, on a real engine behind a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.fakes import FakeExecutor
from tests.server.running import running_server, wait_until
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, PolicyName, SchedulerConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.keys import given_keys
from twostroke.gateway.options import GatewayOptions
from twostroke.scheduling.policies.fair import FairPolicy
from twostroke.text.tokenizer import Tokenizer

LIMIT = 100_000
ALICE, BOB = "sk-alice", "sk-bob"
PROMPT = list(range(1, 30))


class SlowExecutor(FakeExecutor):
    """Takes a while for each step, so that a client can leave in the middle."""

    seconds = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self.seconds)
        return super().execute(plan)


class Bench:
    """A running server, its executor, and what its keys have been billed."""

    def __init__(self, url: str, engine: LLMEngine, executor: SlowExecutor) -> None:
        self.url = url
        self.engine = engine
        self.executor = executor

    def client(self, key: str = ALICE) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0)

    def billed(self, key: str = ALICE) -> int:
        """Read from the headers of a request that uses no tokens."""
        response = httpx.post(
            self.url + "/detokenize", json={}, headers={"authorization": f"Bearer {key}"}
        )
        return LIMIT - int(response.headers["x-ratelimit-remaining-tokens"])

    def metric(self, name: str) -> int:
        lines = self.engine.metrics.render()[0].decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name)))

    def generated(self) -> int:
        return self.metric("vllm:generation_tokens_total")

    def idle(self) -> bool:
        stats = self.engine.last_stats
        return stats.num_running + stats.num_waiting == 0


@contextmanager
def serve(policy: PolicyName = "fcfs", max_num_seqs: int = 8, **options: Any) -> Iterator[Bench]:
    executor = SlowExecutor(num_blocks=400, max_model_len=1000)
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, policy=policy))
    engine = LLMEngine(executor, Tokenizer(byte_level()), config, served_model_name="fake")
    client = AsyncEngine(engine)
    gateway = Gateway(GatewayOptions(api_key=(ALICE, BOB), tokens_per_minute=LIMIT, **options))
    try:
        with running_server(client, gateway=gateway, served_model_name=("fake",)) as url:
            yield Bench(url, engine, executor)
    finally:
        client.close()


FIELDS: dict[str, Any] = {"model": "fake", "prompt": PROMPT, "extra_body": {"ignore_eos": True}}


def test_a_whole_answer_is_billed_streamed_or_not() -> None:
    with serve() as bench, bench.client() as api:
        usage: Any = api.completions.create(**FIELDS, max_tokens=7).usage
        wait_until(lambda: bench.billed() == usage.total_tokens == len(PROMPT) + 7)
        list(api.completions.create(**FIELDS, max_tokens=7, stream=True))
        wait_until(lambda: bench.billed() == 2 * usage.total_tokens)
        assert bench.billed(BOB) == 0


def test_several_samples_and_prompts() -> None:
    """A prompt counts once for all its samples, as in the usage that clients see."""
    with serve() as bench, bench.client() as api:
        fields = {**FIELDS, "prompt": [PROMPT, PROMPT[:5]]}
        usage: Any = api.completions.create(**fields, max_tokens=6, n=3).usage
        assert usage.total_tokens == 29 + 5 + 6 * 6
        wait_until(lambda: bench.billed() == usage.total_tokens)


def test_a_stream_that_is_left_is_billed_for_what_the_engine_did() -> None:
    """To the last token, those included that no client has read."""
    with serve() as bench, bench.client() as api:
        bench.executor.seconds = 0.01
        stream = api.completions.create(**FIELDS, max_tokens=900, stream=True)
        next(iter(stream))
        wait_until(lambda: bench.generated() > 5)
        stream.close()
        wait_until(bench.idle)
        wait_until(lambda: bench.billed() == len(PROMPT) + bench.generated())
        assert 1 < bench.generated() < 900


def test_an_answer_whose_client_has_left_is_charged_too() -> None:
    with serve() as bench, bench.client() as api:
        bench.executor.seconds = 0.01
        with pytest.raises(openai.APITimeoutError):
            api.with_options(timeout=0.2).completions.create(**FIELDS, max_tokens=900)
        wait_until(bench.idle)
        wait_until(lambda: bench.billed() == len(PROMPT) + bench.generated())
        assert 1 < bench.generated() < 900


def test_a_request_that_leaves_the_queue_is_not_charged() -> None:
    """While it waits its prompt is reserved; it never ran."""
    with serve(max_num_seqs=1) as bench, bench.client() as api, bench.client(BOB) as other:
        bench.executor.seconds = 0.02
        running = api.completions.create(**FIELDS, max_tokens=900, stream=True)
        next(iter(running))
        with pytest.raises(openai.APITimeoutError):
            other.with_options(timeout=0.2).completions.create(**FIELDS, max_tokens=5)
        wait_until(lambda: bench.engine.last_stats.num_waiting == 0)
        wait_until(lambda: bench.billed(BOB) == 0)
        running.close()


def test_a_failed_request_is_billed_for_what_it_got() -> None:
    with serve() as bench, bench.client() as api:
        bench.executor.seconds = 0.01
        stream = api.completions.create(**FIELDS, max_tokens=900, stream=True)
        next(iter(stream))
        bench.executor.raise_next = RuntimeError("out of luck")
        with pytest.raises(openai.APIError, match="out of luck"):
            list(stream)
        wait_until(lambda: bench.billed() == len(PROMPT) + bench.generated())
        assert bench.generated() >= 1


def test_a_refused_request_is_billed_nothing() -> None:
    with serve() as bench, bench.client() as api:
        with pytest.raises(openai.BadRequestError):
            api.completions.create(**FIELDS, max_tokens=5000)
        with pytest.raises(openai.BadRequestError):
            api.completions.create(**FIELDS, max_tokens=5, temperature=-1)
        assert bench.billed() == 0


def test_running_requests_count_towards_the_limit() -> None:
    """Else a key could start any number of long answers in the first second of its minute."""
    with serve() as bench, bench.client() as api:
        bench.executor.seconds = 0.01
        before = bench.billed()
        stream = api.completions.create(**FIELDS, max_tokens=900, stream=True)
        next(iter(stream))
        wait_until(lambda: bench.billed() > before + len(PROMPT) + 3)
        stream.close()


def cached_tokens(api: openai.OpenAI, salt: str | None = None) -> int:
    body = {"ignore_eos": True} | ({} if salt is None else {"cache_salt": salt})
    usage: Any = api.completions.create(
        model="fake", prompt=PROMPT, max_tokens=1, extra_body=body
    ).usage
    return int(usage.prompt_tokens_details.cached_tokens)


def test_keys_do_not_see_each_others_prefixes() -> None:
    """Neither in usage nor in time: the second key's prompt is computed from its first token on."""
    with serve() as bench, bench.client(ALICE) as alice, bench.client(BOB) as bob:
        assert (cached_tokens(alice), cached_tokens(alice)) == (0, 28)
        hits, computed = (
            bench.metric("vllm:prefix_cache_hits_total"),
            bench.metric("vllm:iteration_tokens_total_sum"),
        )
        assert cached_tokens(bob) == 0
        assert bench.metric("vllm:prefix_cache_hits_total") == hits
        assert bench.metric("vllm:iteration_tokens_total_sum") == computed + len(PROMPT) + 1
        # Nor by giving the salt that the server makes of the other's name.
        name = given_keys([ALICE])[0].name
        assert cached_tokens(bob, f"{len(name)}:{name}") == 0
        # A client's own salt still divides further.
        assert (cached_tokens(alice, "x"), cached_tokens(bob, "x"), cached_tokens(alice, "x")) == (
            0,
            0,
            28,
        )


def test_keys_may_be_made_to_share() -> None:
    with (
        serve(share_prefix_cache=True) as bench,
        bench.client(ALICE) as alice,
        bench.client(BOB) as bob,
    ):
        assert (cached_tokens(alice), cached_tokens(bob)) == (0, 28)
        assert (cached_tokens(alice, "x"), cached_tokens(bob, "x")) == (0, 28)


def test_the_fair_policy_knows_the_keys() -> None:
    """End to end: the scheduler's counters are those of the keys' names."""
    with serve(policy="fair") as bench, bench.client(ALICE) as alice, bench.client(BOB) as bob:
        cached_tokens(alice)
        cached_tokens(bob)
        policy = bench.engine.scheduler.policy
        assert isinstance(policy, FairPolicy)
        counters = policy.counters
        assert len(counters) == 2 and all(name.startswith("key-") for name in counters)


def test_metrics_carry_the_served_name() -> None:
    with serve() as bench:
        assert 'model_name="fake"' in bench.engine.metrics.render()[0].decode()
        assert 'model_name="pilot"' not in bench.engine.metrics.render()[0].decode()


def test_tokenizing_is_billed() -> None:
    """Else a key without tokens left keeps the tokenizer busy for nothing."""
    with serve() as bench:
        head = {"authorization": f"Bearer {ALICE}"}
        answer = httpx.post(bench.url + "/tokenize", json={"prompt": "the dog"}, headers=head)
        count = answer.json()["count"]
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
        assert count > 0 and left == LIMIT - count == LIMIT - bench.billed()
        answer = httpx.post(bench.url + "/detokenize", json={"tokens": PROMPT}, headers=head)
        assert answer.status_code == 200
        assert bench.billed() == count + len(PROMPT) and bench.billed(BOB) == 0
        httpx.post(bench.url + "/detokenize", json={"tokens": [1] * LIMIT}, headers=head)
        for route, body in (
            ("/tokenize", {"prompt": "x"}),
            ("/detokenize", {"tokens": [1]}),
            ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ):
            refused = httpx.post(bench.url + route, json=body, headers=head)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
