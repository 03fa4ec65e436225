"""Two keys at one server under `--policy fair`, over HTTP: a flood of one, and the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import httpx

from tests.fakes import FakeExecutor
from tests.server.running import running_server, wait_until
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig, PolicyName, SchedulerConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.text.tokenizer import Tokenizer

# As many quiet requests as the share of their key allows beside the flood: a fourth or fifth waits.
NUM_SEATS, NUM_QUIET = 8, 3
STEP_SECONDS, TOKEN_SECONDS = 0.02, 0.002


class TimedExecutor(FakeExecutor):
    """A step takes what it would on a slow machine."""

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens)
        return super().execute(plan)


@contextmanager
def two_keys(policy: PolicyName) -> Iterator[tuple[str, AsyncEngine]]:
    config = SchedulerConfig(policy=policy, max_num_seqs=NUM_SEATS, max_num_batched_tokens=64)
    engine = LLMEngine(
        TimedExecutor(2000, max_model_len=400),
        Tokenizer(byte_level()),
        EngineConfig(scheduler=config),
    )
    client = AsyncEngine(engine)
    gateway = Gateway(GatewayOptions(api_key=("sk-quiet", "sk-flood")))
    with running_server(client, gateway=gateway) as url:
        try:
            yield url, client
        finally:
            client.close()


def time_to_first_token(url: str, number: int) -> float:
    """Seconds until the quiet key's request has its first event; its prompt is of 64 tokens."""
    body = {
        "prompt": [number + 1] * 64,
        "max_tokens": 2,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    headers = {"authorization": "Bearer sk-quiet"}
    began = time.monotonic()
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, headers=headers, timeout=30
    ) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        next(lines)
        seconds = time.monotonic() - began
        for _ in lines:
            pass
    return seconds


def median_ttft(policy: PolicyName, *, flood: int) -> float:
    """Of the quiet key, beside ``flood`` requests of the other one that all want 200 tokens."""
    with two_keys(policy) as (url, client), httpx.Client(timeout=60) as other:
        body = {"prompt": [[3, 4, 5] * 4] * flood, "max_tokens": 200, "ignore_eos": True}

        def send() -> None:
            with contextlib.suppress(httpx.HTTPError):  # it is cut off when enough has been seen
                other.post(
                    f"{url}/v1/completions", json=body, headers={"authorization": "Bearer sk-flood"}
                )

        thread = threading.Thread(target=send)
        if flood:
            thread.start()
            wait_until(
                lambda: (
                    client.status.stats.num_running == NUM_SEATS
                    and client.status.stats.num_waiting > 0
                ),
                10,
            )
        seconds = []
        for number in range(NUM_QUIET):
            seconds.append(time_to_first_token(url, number))
            time.sleep(0.05)
        assert not flood or client.status.stats.num_waiting > 0, "the flood had dried up"
    if flood:
        thread.join()
    return median(seconds)


def test_a_flooding_key_does_not_drown_another() -> None:
    """Its answers of 200 tokens hold every seat for seconds; the quiet key does not wait."""
    alone = median_ttft("fair", flood=0)
    assert median_ttft("fair", flood=4 * NUM_SEATS) <= 2 * alone
