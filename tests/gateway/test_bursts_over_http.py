"""One call that asks for 1,024 endless answers, and another key that sends three requests at once.

The server is started as an operator would: with keys, and without ``--policy``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import httpx
import pytest

from tests.server.running import running_process, wait_until

ATTACK = {"prompt": ["a"] * 8, "n": 128, "max_tokens": 2000, "ignore_eos": True}
CONCURRENCY, NUM_REQUESTS, MAX_SECONDS = 3, 5, 4.0
ATTACK_SECONDS = 3.0  # in which its samples get long: displacing one costs more
KEYS = ("--api-key", "sk-light", "--api-key", "sk-heavy", "--metrics-without-key")
SERVE = (
    "-m", "twostroke", "serve", "pilot-draft", "--port", "0", "--kv-cache-memory", "128MiB",
    "--max-model-len", "2048",
)  # fmt: skip


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def num_running(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def seconds_in_bursts(url: str) -> list[float]:
    """Of the light key's requests, three at a time, beside the attack; all are answered."""
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:

        async def answer_in_turn() -> list[float]:
            return [await answer() for _ in range(NUM_REQUESTS)]

        async def answer() -> float:
            body = {"prompt": "hi", "max_tokens": 1}
            began = time.monotonic()
            response = await http.post("/v1/completions", headers=headers("sk-light"), json=body)
            assert response.status_code == 200, response.text
            return time.monotonic() - began

        attack = asyncio.create_task(
            http.post("/v1/completions", headers=headers("sk-heavy"), json=ATTACK, timeout=None)
        )
        try:
            await asyncio.to_thread(wait_until, lambda: num_running(url) >= 64, 30)
            await asyncio.sleep(ATTACK_SECONDS)
            in_turn = await asyncio.gather(*(answer_in_turn() for _ in range(CONCURRENCY)))
            assert not attack.done(), "the attack had ended"
        finally:
            attack.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await attack
    return [seconds for turns in in_turn for seconds in turns]


def test_a_key_with_three_requests_at_once_does_not_starve() -> None:
    """The second and third took more than 25 s under `fair`; under `fcfs`, which was the default,
    all of them did.
    """
    with running_process(*SERVE, *KEYS) as server:
        url = server.url()
        assert "policy     fair" in server.stderr
        assert max(asyncio.run(seconds_in_bursts(url))) < MAX_SECONDS


@pytest.mark.parametrize(
    "flags", [(), (*KEYS, "--policy", "fcfs")], ids=["without keys", "policy given"]
)
def test_fair_is_the_default_with_keys_only(flags: tuple[str, ...]) -> None:
    with running_process(*SERVE, *flags) as server:
        server.url()
        assert "policy     fair" not in server.stderr
