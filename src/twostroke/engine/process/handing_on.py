"""Which engines compute prompts for others, by what they say of themselves; and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.engine.clients.exposition import exposition_of
from twostroke.engine.executor import ExecutorInfo
from twostroke.timing.move_times import MoveTimes


class PrefillPlan(NamedTuple):
    """How many engines compute prompts for the others (DistServe, arXiv:2401.09670).

    Attributes:
        min_tokens: Shorter prompts are computed where their answers are; by default what has been
            measured tells how short.
        memory: Bytes in which each keeps blocks for the others. So are prompts that exceed it.
    """

    num_engines: int = 0
    min_tokens: int | None = None
    memory: int = 1 << 30


class PrefillPool(NamedTuple):
    """Engines that compute prompts for the others.

    Attributes:
        tiers: By index of each, where the others fetch the blocks that it has computed.
    """

    tiers: Mapping[int, str] = {}
    plan: PrefillPlan = PrefillPlan()


NO_POOL = PrefillPool()


def offered_by(info: ExecutorInfo) -> str | None:
    """The address where an engine gives others the blocks that it has computed, if it does."""
    return next((tier.place for tier in info.tiers if tier.place), None)


def fetches(info: ExecutorInfo) -> bool:
    """Whether an engine fetches blocks from an address that comes with a request."""
    return any(tier.by_address for tier in info.tiers)


def room_for(info: ExecutorInfo, num_tokens: int) -> bool:
    """Whether what an engine offers holds a prompt's blocks."""
    tier = next((tier for tier in info.tiers if tier.place), None)
    num_blocks = -(-num_tokens // info.block_size) * info.kv_groups.count
    return tier is not None and num_blocks <= tier.num_blocks


def moves_exposition(model_name: str, moves: MoveTimes, min_tokens: int) -> bytes:
    """Prometheus text: which prompts are computed apart, and how long it takes to move on."""
    least = GaugeMetricFamily(
        "twostroke:prefill_min_tokens",
        "Prompts from this length on are computed apart.",
        labels=["model_name"],
    )
    least.add_metric([model_name], min_tokens)
    count = CounterMetricFamily(
        "twostroke:handed_on_requests",
        "Requests that got their next token from another engine than that of their prompt.",
        labels=["model_name"],
    )
    count.add_metric([model_name], moves.num_moves)
    seconds = CounterMetricFamily(
        "twostroke:handing_on_seconds",
        "Seconds from their last token of the one engine to the first of the other.",
        labels=["model_name"],
    )
    seconds.add_metric([model_name], moves.move_seconds)
    return exposition_of([least, count, seconds])
