"""When a request's first token will come, from what an engine says of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from twostroke.scheduling.admission.waiting_calls import Ahead
from twostroke.timing.step_times import Prices, PromptWork

# Entries come at random: this many standard deviations of their number are allowed for, which keeps
# some 14 of 15 requests within what was predicted.
MARGIN = 1.5
NONE_RUNNING: Mapping[str, int] = MappingProxyType({})
NOTHING_KNOWN: Mapping[str, float] = MappingProxyType({})


class EngineLoad(NamedTuple):
    """An engine after a step; a value that crosses to its clients.

    Attributes:
        prices: What prompts add to a step.
        step_seconds: What a step takes in which nothing but the running requests decode.
        chunk: Prompt tokens that a step has room for beside them.
        backlog: What is left of the running requests' prompts.
        num_free: Places for further requests; 0 while blocks are short.
        seconds_per_entry: Between two requests that get a place while others wait for one.
        under_way: Seconds of the latest step: one such may have begun.
        running: Requests that run, by tenant.
        uncached: Mean share of a tenant's latest prompts that the prefix cache did not hold.
    """

    prices: Prices = Prices()
    step_seconds: float = 0.0
    chunk: int = 1
    backlog: PromptWork = PromptWork()
    num_free: int = 1
    seconds_per_entry: float = 0.0
    under_way: float = 0.0
    running: Mapping[str, int] = NONE_RUNNING
    uncached: Mapping[str, float] = NOTHING_KNOWN

    def expected_work(self, tenant: str, num_tokens: int) -> PromptWork:
        """What a prompt will take, if the cache holds as much of it as of the tenant's latest."""
        computed = round(self.uncached.get(tenant, 1.0) * num_tokens)
        return PromptWork.of(num_tokens - computed, computed)


def predict_ttft(load: EngineLoad, ahead: Ahead, work: PromptWork) -> float:
    """Seconds from now until the first token of a prompt that takes ``work``.

    It needs a place, and so do those ahead; and its prompt and theirs share the steps' room. The
    longer of the two waits counts. Entries are taken for a Poisson process, with a margin, since
    at the edge of refusal half would otherwise come late. Grows with ``ahead`` and with ``work``.
    """
    prompts = load.backlog.plus(ahead.work).plus(work)
    computed = _prompt_seconds(load, prompts)
    num_entries = entries_before(load, ahead)
    expected = (num_entries + MARGIN * math.sqrt(num_entries)) * load.seconds_per_entry
    entered = expected + _prompt_seconds(load, work)
    return load.under_way / 2 + max(computed, entered)


def entries_before(load: EngineLoad, ahead: Ahead) -> int:
    """Requests that must get a place, its own included, before it has one; 0 if one is free."""
    return max(0, ahead.num_samples + 1 - load.num_free)


def _prompt_seconds(load: EngineLoad, work: PromptWork) -> float:
    num_steps = math.ceil(work.tokens / max(1, load.chunk))
    each_step = load.step_seconds + load.prices.step
    return num_steps * each_step + load.prices.beside_steps(work)
