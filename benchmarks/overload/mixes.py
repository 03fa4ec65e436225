"""Chats among which prompts of 8,000 tokens arrive: three mixes, as traces for both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

LONG_PROMPT, LONG_ANSWER = 8000, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Requests a second of each kind; Poisson."""

    name: str
    chats: float
    long: float
    chat_prompt: int = 128
    chat_answer: int = 64


MIXES = (
    Mix(name="few chats", chats=2.0, long=0.4),
    Mix(name="many chats", chats=10.0, long=0.2),
    Mix(name="long answers", chats=3.0, long=0.3, chat_prompt=256, chat_answer=256),
)


def write_mix(mix: Mix, seconds: float, path: Path, seed: int = 0) -> None:
    """A trace in Azure's columns, as ``simulate`` and ``bench serve`` read them."""
    random = Random(f"{seed} {mix.name}")
    rows = []
    for rate, prompt, answer in (
        (mix.chats, mix.chat_prompt, mix.chat_answer),
        (mix.long, LONG_PROMPT, LONG_ANSWER),
    ):
        now = random.expovariate(rate)
        while now < seconds:
            rows.append((now, prompt, answer))
            now += random.expovariate(rate)
    lines = [f"{now:.6f},{prompt},{answer}" for now, prompt, answer in sorted(rows)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *lines]) + "\n")
