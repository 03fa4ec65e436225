"""Traffic that fills the pages: short chats with one system prompt, and long prompts between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx

SYSTEM = "You are a helpful assistant who explains how language model servers work. " * 6
QUESTIONS = (
    "Why is decode slower than prefill?",
    "What is a KV cache?",
    "Explain continuous batching.",
    "What is a token?",
    "What does temperature do?",
    "How does paged attention work?",
)
LONG = "The quick brown fox jumps over the lazy dog while the server reads. "


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The address of ``twostroke serve pilot`` in a process of its own."""
    command = [sys.executable, "-m", "twostroke", "serve", "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if match := re.search(r"API\s+(http://[^/]+)/v1", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield match[1]
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


async def send(url: str, seconds: float, num_clients: int, *, seed: int = 0) -> int:
    """Send until the time is over; returns how many output tokens came.

    Client 0 sends long prompts, the others short questions.
    """
    end = asyncio.get_running_loop().time() + seconds
    limits = httpx.Limits(max_connections=num_clients + 8)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        counts = await asyncio.gather(
            *(_ask(client, url, end, number, seed) for number in range(num_clients))
        )
    return sum(counts)


async def _ask(client: httpx.AsyncClient, url: str, end: float, number: int, seed: int) -> int:
    dice = random.Random(1000 * seed + number)
    tokens = 0
    while asyncio.get_running_loop().time() < end:
        is_long = number == 0
        text = (
            LONG * dice.randint(24, 60) + str(dice.random()) if is_long else dice.choice(QUESTIONS)
        )
        system = f"Case {dice.random()}" if is_long else SYSTEM
        body = {
            "model": "pilot",
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "max_tokens": dice.randint(24, 60) if is_long else dice.randint(60, 260),
            "user": f"user-{number}",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        }
        last = ""
        async with client.stream("POST", url + "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if '"completion_tokens"' in line:
                    last = line
        if match := re.search(r'"completion_tokens":(\d+)', last):
            tokens += int(match[1])
        await asyncio.sleep(dice.random() * (0.8 if is_long else 0.3))
    return tokens
