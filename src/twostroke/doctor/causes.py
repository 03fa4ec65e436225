"""From the time of requests to causes: what binds, in numbers, the largest first.

A cause counts the share of all requests' time that would not have been spent without it. What a
model must do for a request alone is no fault; where nothing else takes much, it is what binds.
A limit that requests wait at is the cause only where the machine could do more (``GAIN``): else
the machine is, and a higher limit moves the queue from one place to another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from twostroke.doctor.cause import PLAIN, Cause, rank
from twostroke.doctor.figures import duration
from twostroke.doctor.shared_prefixes import Reuse, reuse_of
from twostroke.doctor.time_spent import TimePart, TimeSpent
from twostroke.doctor.window import StepWindow
from twostroke.timing.step_shape import StepShape

# Twice the batch (or four times the budget) must give that much more tokens a second: below it the
# step time grows with its tokens, which is what saturation means.
GAIN = 1.15
# A cause with less of the requests' time is not worth a change.
MIN_SHARE = 0.08
# One key sends that much of the work, and the others would leave the machine that idle.
KEY_SHARE, CALM = 0.6, 0.7
# Prompts so many times as long as the median are long; that share of all prompt tokens is theirs.
LONG, LONG_SHARE = 4.0, 0.4
# The cache would have held that share of the computed prompt tokens, had nothing been evicted.
LOST_REUSE = 0.15
# Less of the time in steps, and nothing waits: a server without much to do.
IDLE = 0.3
# Less than that, and what waited at times came at once: the machine is not what binds.
RESTS = 0.05


def find_causes(window: StepWindow, spent: TimeSpent) -> list[Cause]:
    """All causes that matter, the largest first; last of all what binds anyway."""
    facts = _Facts(window, spent)
    causes = [
        *_refusals(window),
        *_queues(facts),
        *_prompts(facts),
        _made(facts, "static-batching", spent.of(TimePart.STATIC)),
        _made(facts, "policy", spent.of(TimePart.POLICY)),
        _made(facts, "loading", spent.of(TimePart.LOADING)),
        _made(facts, "prefill-chunk", spent.of(TimePart.CHUNK), *_chunk_evidence(facts)),
        *_blocks(facts),
        _made(facts, "preemption", spent.of(TimePart.PREEMPTED), *_preemption_evidence(facts)),
        _made(facts, "host", spent.of(TimePart.HOST)),
        _made(facts, "slow-client", spent.of(TimePart.CLIENT), *_client_evidence(facts)),
        _machine(facts),
        _speculation(facts),
    ]
    merged: dict[str, Cause] = {}
    for cause in causes:
        if (before := merged.get(cause.name)) is not None:
            evidence = list(dict.fromkeys([*before.evidence, *cause.evidence]))
            share, seconds = before.share + cause.share, before.seconds + cause.seconds
            cause = replace(cause, share=share, seconds=seconds, evidence=evidence)
        merged[cause.name] = cause
    large = [each for each in merged.values() if each.share >= MIN_SHARE]
    if not any(cause.name in PLAIN for cause in large):
        large.append(_plain(facts, sum(cause.seconds for cause in large)))
    return sorted(large, key=rank)


class _Facts:
    """Numbers that several rules read."""

    def __init__(self, window: StepWindow, spent: TimeSpent) -> None:
        self.window, self.spent = window, spent
        self.total = max(spent.total, 1e-9)
        answering = [shape.decode_requests for shape in spent.shapes if shape.decode_requests]
        self.answering = max(1, round(fmean(answering))) if answering else 1
        self.most_answering = max(answering, default=1)
        contexts = [
            shape.decode_context / shape.decode_requests
            for shape in spent.shapes
            if shape.decode_requests
        ]
        self.context = int(median(contexts)) if contexts else 1
        self.busy = sum(event.duration for event in window.events) / window.seconds
        self.waiting = [event.num_waiting for event in window.events]
        self.reuse: Reuse = reuse_of(window)

    def step(self, answers: int, prompt: int = 0) -> float:
        """Seconds of a step with so many answers, and a prompt's chunk."""
        chunks = ((prompt, 0),) if prompt else ()
        shape = StepShape(answers, answers * self.context, chunks, answers)
        return self.spent.times.seconds(shape)

    def gain_of_batch(self, answers: int) -> float:
        """Tokens a second with twice the answers, of those with this many."""
        return 2 * self.step(answers) / self.step(2 * answers)

    def gain_of_places(self, answers: int) -> float:
        """Tokens a second likewise, of a server with prompts, which larger batches do not help."""
        shapes = self.spent.shapes
        without = [shape._replace(prefill=()) for shape in shapes]
        whole = float(self.spent.times.seconds_of(shapes).sum())
        answering = float(self.spent.times.seconds_of(without).sum())
        return whole / (whole - answering + answering / self.gain_of_batch(answers))

    def gain_of_budget(self, budget: int) -> float:
        """Prompt tokens a second with four times the budget, of those with this one."""
        room = max(1, budget - self.answering)
        now, then = self.step(self.answering, room), self.step(self.answering, 4 * room)
        return 4 * now / then


def _made(facts: _Facts, name: str, seconds: float, *evidence: str) -> Cause:
    return Cause(name, max(0.0, seconds / facts.total), max(0.0, seconds), list(evidence))


# ---- queues ----------------------------------------------------------------------------------


def _queues(facts: _Facts) -> list[Cause]:
    """Waiting for places and for the budget: the limit's fault, one key's, or the machine's."""
    settings = facts.window.settings
    causes = []
    queue = f"up to {max(facts.waiting, default=0)} requests wait at once"
    for part, name in ((TimePart.SEQS, "max-num-seqs"), (TimePart.BUDGET, "token-budget")):
        seconds = facts.spent.of(part)
        if seconds < 0.01 * facts.total:
            continue
        if key := _hot_key(facts, part):
            causes.append(_made(facts, "one-key", seconds, queue, key))
            continue
        if part is TimePart.SEQS:
            limit = settings.max_num_seqs or facts.most_answering
            gain, what = facts.gain_of_places(limit), f"{2 * limit} answers at once"
        else:
            limit = settings.max_num_batched_tokens or 1
            gain, what = facts.gain_of_budget(limit), f"a budget of {4 * limit} tokens"
        would = f"{what} would give {gain:.2g} times the tokens a second of {limit}"
        if gain >= GAIN:
            causes.append(_made(facts, name, seconds, queue, would))
        else:
            lost = facts.reuse.lost_share
            if lost >= LOST_REUSE:
                causes.append(_made(facts, "eviction", lost * seconds))
                seconds *= 1 - lost
            if facts.busy < RESTS:
                idle = _made(facts, "idle", seconds, _rest(facts), f"{queue}: they came at once")
                causes.append(replace(idle, is_floor=True))
                continue
            full = (
                f"the machine is busy {facts.busy:.0%} of the time, and a higher limit than {limit}"
                " would not give more tokens a second"
            )
            causes.append(_made(facts, _kind_of_work(facts), seconds, queue, full))
    return causes


def _hot_key(facts: _Facts, part: TimePart) -> str:
    """What is to be said of one key that makes the queue; empty if none does."""
    work: dict[str, float] = defaultdict(float)
    waits: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for request, seconds in zip(facts.window.requests, facts.spent.by_request(part)):
        tokens = request.prompt - request.cached
        work[request.tenant] += (
            tokens * facts.step(1, 512) / 512
            + request.output * facts.step(facts.answering) / facts.answering
        )
        waits[request.tenant] += float(seconds)
        counts[request.tenant] += 1
    if len(work) < 2:
        return ""
    key, longest = max(work.items(), key=lambda pair: pair[1])
    share = longest / max(1e-9, sum(work.values()))
    waited = sum(seconds for name, seconds in waits.items() if name != key)
    if share < KEY_SHARE or (1 - share) * facts.busy > CALM or waited <= 0:
        return ""
    number = sum(count for name, count in counts.items() if name != key)
    return (
        f"key {key or '(none)'} sends {share:.0%} of the work; the {number} requests of other keys"
        f" wait {waited / number:.3g} s each behind it"
    )


# ---- prompts ---------------------------------------------------------------------------------


def _prompts(facts: _Facts) -> list[Cause]:
    """Prompts of others, evicted beginnings, and answers in one batch."""
    spent, lost = facts.spent, facts.reuse.lost_share
    beside_prompts, own = spent.of(TimePart.PROMPTS), spent.of(TimePart.PROMPT)
    causes = []
    if lost >= LOST_REUSE:
        seconds = lost * (beside_prompts + own)
        evidence = (
            f"{facts.reuse.lost_tokens:,} of {facts.reuse.computed_tokens:,} computed prompt tokens"
            f" ({lost:.0%}) were computed before in this window, and evicted; the cache found"
            f" {facts.reuse.hit_share:.0%} of all prompt tokens",
        )
        causes.append(_made(facts, "eviction", seconds, *evidence))
        beside_prompts *= 1 - lost
    causes.append(_made(facts, "long-prompts", beside_prompts, *_long_prompt_evidence(facts)))
    gain = facts.gain_of_batch(max(1, facts.answering // 2))
    if facts.answering >= 2 and gain < GAIN:
        evidence = (
            f"{facts.answering} answers at once give {gain:.2g} times the tokens a second of half"
            f" as many; a token takes {duration(facts.step(facts.answering))} instead of"
            f" {duration(facts.step(max(1, facts.answering // 2)))}",
        )
        causes.append(_made(facts, "batch-too-large", spent.of(TimePart.BATCH), *evidence))
    return causes


def _long_prompt_evidence(facts: _Facts) -> list[str]:
    """Which prompts hold up the others."""
    prompts = sorted(request.prompt - request.cached for request in facts.window.requests)
    middle = median(prompts)
    long = [r for r in facts.window.requests if r.prompt - r.cached >= LONG * max(1.0, middle)]
    tokens = sum(request.prompt - request.cached for request in long)
    evidence = []
    slowest = max(facts.window.events, key=lambda e: e.num_prompt_tokens, default=None)
    if slowest is not None and slowest.num_prompt_tokens:
        evidence.append(
            f"a step with {slowest.num_prompt_tokens:,} prompt tokens takes"
            f" {duration(slowest.duration)}, one that only answers"
            f" {duration(facts.step(facts.answering))}"
        )
    if long and tokens >= LONG_SHARE * sum(prompts):
        keys = Counter(request.tenant for request in long).most_common(1)[0]
        sender = f"; {keys[1]} of them from key {keys[0]}" if keys[0] else ""
        evidence.append(
            f"{len(long)} of {len(prompts)} prompts, of {fmean(r.prompt for r in long):,.0f} tokens"
            f" each (median {middle:,.0f}), are {tokens / max(1, sum(prompts)):.0%} of all prompt"
            f" tokens{sender}"
        )
    return evidence


def _chunk_evidence(facts: _Facts) -> list[str]:
    chunk = facts.window.settings.max_prefill_chunk
    return [f"chunks have {chunk} tokens; each is a step of its own"] if chunk else []


# ---- KV cache --------------------------------------------------------------------------------


def _blocks(facts: _Facts) -> list[Cause]:
    """Waiting for blocks: a part as large as that of the prompts that were cached is eviction's.

    A request whose beginning was evicted holds blocks of its own for it, and holds them longer.
    """
    seconds, lost = facts.spent.of(TimePart.BLOCKS), facts.reuse.lost_share
    if lost < LOST_REUSE:
        return [_made(facts, "kv-blocks", seconds, *_block_evidence(facts))]
    return [
        _made(facts, "eviction", lost * seconds),
        _made(facts, "kv-blocks", (1 - lost) * seconds, *_block_evidence(facts)),
    ]


def _block_evidence(facts: _Facts) -> list[str]:
    settings = facts.window.settings
    if not settings.num_blocks:
        return []
    used = [1 - event.free_blocks / max(1, event.total_blocks) for event in facts.window.events]
    tokens = settings.num_blocks * settings.block_size
    longest = max(request.prompt + request.output for request in facts.window.requests)
    return [
        f"{settings.num_blocks:,} blocks ({tokens:,} tokens) hold {tokens / max(1, longest):.1f} of"
        f" the longest requests ({longest:,} tokens); in use {fmean(used):.0%} on average,"
        f" {max(used):.0%} at most"
    ]


def _preemption_evidence(facts: _Facts) -> list[str]:
    count = sum(len(event.preempted) for event in facts.window.events)
    if not count:
        return []
    return [f"{count} preemptions of {len(facts.window.requests)} requests"]


# ---- the machine, drafts, clients ------------------------------------------------------------


def _machine(facts: _Facts) -> Cause:
    """Steps that take longer than such steps usually do."""
    spent, events = facts.spent, facts.window.events
    estimates = spent.times.seconds_of(spent.shapes)
    ratios = np.array([e.duration for e in events]) / np.maximum(estimates, 1e-12)
    slow = ratios >= 1.5
    evidence = (
        f"{slow.mean():.0%} of the steps take at least 1.5 times their usual time, one in a hundred"
        f" {np.percentile(ratios, 99):.2g} times: other programs on its cores, a lower clock, or"
        " swapping",
    )
    return _made(facts, "machine", spent.of(TimePart.MACHINE), *evidence)


def _speculation(facts: _Facts) -> Cause:
    """Drafts that cost more time than the accepted ones saved."""
    shares = [share for event in facts.window.events for share in event.scheduled]
    drafts = sum(share.num_drafts for share in shares)
    accepted = sum(share.num_accepted_drafts for share in shares)
    if not drafts:
        return _made(facts, "speculation", 0.0)
    cost = facts.spent.of(TimePart.DRAFTS)
    drafted = [share for share in shares if share.num_drafts]
    # An accepted draft saves its request a step without drafts.
    step = facts.spent.of(TimePart.MODEL, TimePart.BATCH, TimePart.HOST) / max(1, len(shares))
    lost = cost - accepted * step
    evidence = (
        f"{accepted:,} of {drafts:,} drafts are accepted ({accepted / drafts:.0%}),"
        f" {drafts / max(1, len(drafted)):.2g} to a step: they cost {cost:.3g} s of the requests'"
        f" time and save {accepted * step:.3g} s",
    )
    return _made(facts, "speculation", lost, *evidence)


def _client_evidence(facts: _Facts) -> list[str]:
    late = [
        call.last_byte - last
        for request in facts.window.requests
        if (call := facts.window.calls.get(request.request_id)) is not None
        and call.last_byte is not None
        and (last := request.last) is not None
    ]
    slow = [seconds for seconds in late if seconds > 0.1]
    if not slow:
        return []
    return [
        f"{len(slow)} of {len(late)} answers were read {fmean(slow):.3g} s after they were written,"
        f" {max(slow):.3g} s at most; the engine had long ended"
    ]


def _refusals(window: StepWindow) -> list[Cause]:
    causes = []
    calls = max(window.num_calls, len(window.requests) + window.status_429)
    if window.status_429 > window.refused:
        share = (window.status_429 - window.refused) / calls
        text = f"{window.status_429 - window.refused} of {calls} calls got status 429"
        causes.append(Cause("rate-limits", share, 0.0, [text]))
    if window.refused:
        calls = max(calls, len(window.requests) + window.refused)
        text = f"{window.refused} of {calls} calls were refused by --admission predicted"
        causes.append(Cause("early-refusal", window.refused / calls, 0.0, [text]))
    return causes


# ---- what binds anyway -----------------------------------------------------------------------


def _kind_of_work(facts: _Facts) -> str:
    """What most of the steps' time goes to: multiplying, or reading weights and contexts."""
    times = facts.spent.times
    values = times.coefficients
    compute = reading = 0.0
    for shape in facts.spent.shapes:
        tokens = shape.decode_requests + sum(chunk for chunk, _ in shape.prefill)
        multiply = values["token"] * tokens
        if multiply > values["weights"]:
            compute += times.seconds(shape)
        else:
            reading += times.seconds(shape)
    return "compute" if compute > reading else "bandwidth"


def _rest(facts: _Facts) -> str:
    return f"steps run {facts.busy:.0%} of the time: it mostly idles, and nothing binds it"


def _plain(facts: _Facts, lost: float) -> Cause:
    """The constraint of what is left: the model's own work.

    Args:
        lost: Seconds that have causes.
    """
    seconds = max(0.0, facts.total - lost)
    if facts.busy < RESTS or (facts.busy < IDLE and max(facts.waiting, default=0) == 0):
        return Cause("idle", seconds / facts.total, seconds, [_rest(facts)], is_floor=True)
    tokens = fmean(shape.decode_requests for shape in facts.spent.shapes)
    evidence = f"steps run {facts.busy:.0%} of the time, with {tokens:.2g} answers on average"
    name = _kind_of_work(facts)
    return Cause(name, seconds / facts.total, seconds, [evidence], is_floor=True)
