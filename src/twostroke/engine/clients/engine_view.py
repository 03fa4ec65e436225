"""One engine as its client sees it at the moment, for pages and people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from twostroke.engine.messages import EngineStatus
from twostroke.observability.events import StepEvent

EngineState = Literal["ready", "left_out", "starting", "leaving", "asleep", "down"]
EngineRole = Literal["both", "prefill", "decode"]


class EngineView(msgspec.Struct, frozen=True):
    """An engine; counts are since its client began.

    Attributes:
        model, engine: Labels of its metrics.
        state: ``ready``; ``left_out``: it runs, but gets nothing for a while, since it failed again
            and again.
        reason: Why it is not ready, or what is wrong all the same.
        role: Whether it computes prompts for others, or fetches them.
        where: Its process or address.
        running: Requests that hold blocks.
        waiting: Requests that wait for room.
        kv: Share of its blocks that requests hold.
        prefix_queries: Tokens looked up in its prefix cache since it started.
        prefix_hits: Tokens found there.
        sent: Requests that a router sent to it first.
        came: Requests that went on in it, from another.
        left: Requests of it that went on in another.
        failures: How often it has ended by itself.
        number: Tells it from all others that its client has had; below 0: it has not started.
        routed: Requests that were sent to it, by why.
    """

    model: str
    engine: str
    state: EngineState
    reason: str = ""
    role: EngineRole = "both"
    where: str = ""
    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    sent: int = 0
    came: int = 0
    left: int = 0
    failures: int = 0
    number: int = 0
    routed: dict[str, int] = {}


class EnginePart(NamedTuple):
    """An engine of a client.

    Attributes:
        events: The events of its steps after a number.
    """

    view: EngineView
    events: Callable[[int], list[StepEvent]]

    def in_process(self, where: str, *, asleep: bool) -> EnginePart:
        """An engine that runs in a process of its own, or has ended for want of requests."""
        state: EngineState = "asleep" if asleep else self.view.state
        return self._replace(view=msgspec.structs.replace(self.view, where=where, state=state))


def view_of(labels: Mapping[str, str], status: EngineStatus, reason: str) -> EngineView:
    """An engine by what it has said last.

    Args:
        reason: What is wrong, if anything is.
    """
    stats = status.stats
    state: EngineState = "ready" if status.error is None else "down"
    if status.draining:
        state = "leaving"
    held = stats.total_blocks - stats.free_blocks
    return EngineView(
        labels["model_name"],
        labels["engine"],
        state,
        reason,
        running=stats.num_running,
        waiting=stats.num_waiting,
        kv=held / stats.total_blocks if stats.total_blocks else 0.0,
        prefix_queries=stats.prefix_queries,
        prefix_hits=stats.prefix_hits,
    )
