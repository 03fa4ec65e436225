"""Where the time of requests went: each second of each, from arrival to its last byte, has a cause.

What a step took is divided by the step times that are fitted to the window itself: what the step
would have taken for one request, what the others added, what their prompts added, what drafts
added. What it took beyond that is the machine's. What a request waited is divided by the reasons
that the scheduler gave for it in each step. All parts add up to what requests took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from twostroke.core.step import Reason
from twostroke.doctor.window import RequestReading, StepWindow
from twostroke.observability.events import StepEvent
from twostroke.timing.recorded_steps import FittedStepTimes, fit_step_times
from twostroke.timing.step_shape import StepShape

Seconds = npt.NDArray[np.float64]


class TimePart(Enum):
    """What a second of a request was spent on; the value is its name in reports."""

    BUDGET = "waiting: token budget"
    SEQS = "waiting: places in the batch"
    BLOCKS = "waiting: KV blocks"
    STATIC = "waiting: a batch that runs"
    POLICY = "waiting: the policy"
    LOADING = "waiting: KV blocks from a tier"
    CHUNK = "its own prompt, cut into small chunks"
    PROMPT = "its own prompt"
    PROMPTS = "prompts of others"
    BATCH = "other answers in the batch"
    DRAFTS = "drafts"
    PREEMPTED = "preempted, and computed again"
    MACHINE = "slower than the machine's usual speed"
    HOST = "host: between and beside the passes"
    CLIENT = "a client that reads slowly"
    MODEL = "the model, one request alone"


PLACE = {part: place for place, part in enumerate(TimePart)}
_WAITS = {
    Reason.TOKEN_BUDGET: TimePart.BUDGET,
    Reason.TPOT_TARGET: TimePart.BUDGET,
    Reason.PREFILL_CHUNK: TimePart.CHUNK,
    Reason.NO_FREE_BLOCK: TimePart.BLOCKS,
    Reason.MAX_NUM_SEQS: TimePart.SEQS,
    Reason.POLICY: TimePart.POLICY,
    Reason.BATCH_RUNNING: TimePart.STATIC,
    Reason.SHARES_PROMPT: TimePart.PROMPTS,
    Reason.LOADING: TimePart.LOADING,
    Reason.PREEMPTED: TimePart.PREEMPTED,
}
# What a device does; the rest of a step is the host's.
_ON_DEVICE = ("forward", "sample", "draft")


@dataclass(frozen=True)
class TimeSpent:
    """Seconds by request (the window's order) and part (``PLACE``).

    Attributes:
        first: From arrival to the first token.
        after: From there to the last byte.
        times: Step times as fitted.
        shapes: What each step computed.
    """

    first: Seconds
    after: Seconds
    times: FittedStepTimes
    shapes: list[StepShape]

    @property
    def total(self) -> float:
        return float(self.first.sum() + self.after.sum())

    def of(self, *parts: TimePart) -> float:
        """Seconds of all requests together."""
        places = [PLACE[part] for part in parts]
        return float(self.first[:, places].sum() + self.after[:, places].sum())

    def by_request(self, *parts: TimePart) -> Seconds:
        """Seconds of each request."""
        places = [PLACE[part] for part in parts]
        seconds: Seconds = (self.first[:, places] + self.after[:, places]).sum(axis=1)
        return seconds


def step_shape(event: StepEvent, *, prompts: bool = True, drafts: bool = True) -> StepShape:
    """What a step computed; a request that verifies drafts counts as a short chunk.

    Args:
        prompts: With what belongs to prompts, and to what is computed again.
        drafts: With what drafts added.
    """
    requests = context = sampled = 0
    chunks = []
    for share in event.scheduled:
        num_given = share.num_tokens - share.num_drafts
        if num_given != 1:
            if prompts:
                chunks.append((share.num_tokens, share.start))
                sampled += share.sampled
            continue
        sampled += share.sampled
        if drafts and share.num_drafts:
            chunks.append((share.num_tokens, share.start))
        else:
            requests += 1
            context += share.start + 1
    return StepShape(requests, context, tuple(chunks), sampled)


def fit_window(windows: Sequence[StepWindow]) -> FittedStepTimes:
    """Step times of one engine, or of several taken for one. Raises ConfigError: too few steps."""
    return fit_step_times(
        [
            (step_shape(event), event.duration - event.timings.get("draft", 0.0))
            for window in windows
            for event in window.events
            if event.scheduled
        ]
    )


def time_spent(window: StepWindow, times: FittedStepTimes | None = None) -> TimeSpent:
    """Divide the time of the window's requests.

    Raises:
        ConfigError: Too few steps to fit step times to.
    """
    times = times or fit_window([window])
    rates = _StepRates(window, times)
    count = len(window.requests)
    first, after = np.zeros((count, len(TimePart))), np.zeros((count, len(TimePart)))
    own = _own_prompts(window, rates)
    for row, request in enumerate(window.requests):
        first_token = request.first_token
        begun = max(request.arrival, window.begin)
        until = request.scheduled
        # It waits for the step under way, whatever that does, and then for what the scheduler says.
        next_step = rates.next_begin(begun, until)
        first[row] += rates.between(begun, next_step)
        first[row] += rates.waited(next_step, until)
        last = request.last
        if first_token is None or last is None:
            continue
        first[row] += rates.between(until, first_token)
        after[row] += rates.between(first_token, last)
        for part, seconds in own.get(request.request_id, {}).items():
            # From what its step had of it, to what it is for this request.
            first[row, PLACE[part]] += seconds
            source = TimePart.PROMPTS if part is TimePart.PROMPT else TimePart.MODEL
            first[row, PLACE[source]] -= seconds
        _move_lost(request, first[row], after[row], rates)
        call = window.calls.get(request.request_id)
        if call is not None and call.last_byte is not None and len(call.request_ids) == 1:
            after[row, PLACE[TimePart.CLIENT]] += max(0.0, call.last_byte - last)
    return TimeSpent(first, after, times, rates.shapes)


def _move_lost(request: RequestReading, first: Seconds, after: Seconds, rates: _StepRates) -> None:
    """What passes from a preemption to where the request was before is the preemption's."""
    token = request.first_token
    for begin, end in request.lost:
        for row, low, high in (
            (first, begin, end if token is None else min(end, token)),
            (after, begin if token is None else max(begin, token), end),
        ):
            if high > low:
                row -= rates.between(low, high)
                row[PLACE[TimePart.PREEMPTED]] += high - low


def _own_prompts(window: StepWindow, rates: _StepRates) -> dict[str, dict[TimePart, float]]:
    """Seconds of each request's steps that its own prompt took, and small chunks of it."""
    own: dict[str, dict[TimePart, float]] = {}
    for row, event in enumerate(window.events):
        chunked = {h.request_id for h in event.held_back if h.reason is Reason.PREFILL_CHUNK}
        total = sum(s.num_tokens for s in event.scheduled if s.num_tokens - s.num_drafts != 1)
        for share in event.scheduled:
            if not share.num_prompt_tokens or share.num_tokens - share.num_drafts == 1:
                continue
            parts = own.setdefault(share.request_id, defaultdict(float))
            prompts = rates.seconds(row, TimePart.PROMPTS)
            parts[TimePart.PROMPT] += prompts * share.num_tokens / total
            if share.request_id in chunked:
                parts[TimePart.CHUNK] += rates.seconds(row, TimePart.MODEL)
            elif not share.sampled:  # the budget cut it
                parts[TimePart.BUDGET] += rates.seconds(row, TimePart.MODEL)
    return own


class _StepRates:
    """What a second of a request is spent on at each moment: of one that runs, of one that waits.

    Between two steps while requests run, the host is at work.
    """

    def __init__(self, window: StepWindow, times: FittedStepTimes) -> None:
        events = window.events
        self.shapes = [step_shape(event) for event in events]
        begins = np.array([event.time for event in events])
        durations = np.array([max(event.duration, 1e-9) for event in events])
        ends = begins + durations
        ends[:-1] = np.minimum(ends[:-1], begins[1:])
        self._begins = begins
        self._in_steps = self._divide(events, times, durations)
        running = np.array([event.num_running > 0 for event in events])
        pauses = np.zeros(len(events))
        pauses[:-1] = np.where(running[:-1], begins[1:] - ends[:-1], 0.0)
        knots = np.empty(2 * len(events))
        knots[0::2], knots[1::2] = begins, ends
        self._knots = knots
        runs = np.zeros((2 * len(events), len(TimePart)))
        runs[1::2] = self._in_steps
        runs[2::2, PLACE[TimePart.HOST]] = pauses[:-1]
        self._runs = np.cumsum(runs, axis=0)
        self._waits = np.cumsum(self._divide_waits(events, runs), axis=0)

    def next_begin(self, time: float, until: float) -> float:
        """When the first step after ``time`` begins, at the latest ``until``."""
        place = int(np.searchsorted(self._begins, time, side="left"))
        return min(until, float(self._begins[place])) if place < len(self._begins) else until

    def seconds(self, row: int, part: TimePart) -> float:
        """What a step spent on a part."""
        return float(self._in_steps[row, PLACE[part]])

    def between(self, begin: float, end: float) -> Seconds:
        """Parts of a running request's time."""
        return self._between(self._runs, begin, end)

    def waited(self, begin: float, end: float) -> Seconds:
        """Parts of a waiting request's time."""
        return self._between(self._waits, begin, end)

    def _between(self, sums: Seconds, begin: float, end: float) -> Seconds:
        if end <= begin:
            return np.zeros(len(TimePart))
        return self._at(sums, end) - self._at(sums, begin)

    def _at(self, sums: Seconds, time: float) -> Seconds:
        place = int(np.searchsorted(self._knots, time, side="right")) - 1
        if place < 0:
            return np.zeros(len(TimePart))
        if place >= len(self._knots) - 1:
            last: Seconds = sums[-1]
            return last
        width = self._knots[place + 1] - self._knots[place]
        share = (time - self._knots[place]) / width if width > 0 else 1.0
        row: Seconds = sums[place] + share * (sums[place + 1] - sums[place])
        return row

    def _divide(
        self, events: Sequence[StepEvent], times: FittedStepTimes, durations: Seconds
    ) -> Seconds:
        """Each step's duration by part."""
        answers = [step_shape(event, prompts=False) for event in events]
        plain = [step_shape(event, prompts=False, drafts=False) for event in events]
        alone = [
            StepShape(1, s.decode_context // s.decode_requests, (), 1)
            if s.decode_requests
            else StepShape(0, 0, (), 0)
            for s in plain
        ]
        whole = times.seconds_of(self.shapes)
        with_drafts = times.seconds_of(answers)
        without = times.seconds_of(plain)
        one = times.seconds_of(alone)
        device = np.array([sum(e.timings.get(n, 0.0) for n in _ON_DEVICE) for e in events])
        drafting = np.array([e.timings.get("draft", 0.0) for e in events])
        host = np.where(device > 0, np.clip(durations - device, 0.0, one), 0.0)
        drafts = np.maximum(with_drafts - without, 0) + drafting
        parts = np.zeros((len(events), len(TimePart)))
        parts[:, PLACE[TimePart.HOST]] = host
        parts[:, PLACE[TimePart.MODEL]] = one - host
        parts[:, PLACE[TimePart.BATCH]] = np.maximum(without - one, 0)
        parts[:, PLACE[TimePart.DRAFTS]] = drafts
        parts[:, PLACE[TimePart.PROMPTS]] = np.maximum(whole - with_drafts, 0)
        # Noise about the fit cancels out in sums; what is left over is the machine's.
        parts[:, PLACE[TimePart.MACHINE]] = durations - parts.sum(axis=1)
        return parts

    def _divide_waits(self, events: Sequence[StepEvent], runs: Seconds) -> Seconds:
        """What waiting requests wait for: by the reasons of each step, else as those that run."""
        waits = runs.copy()
        for row, event in enumerate(events):
            ran = {share.request_id for share in event.scheduled}
            reasons: Counter[TimePart] = Counter()
            for held in event.held_back:
                if held.request_id not in ran:
                    reasons[_WAITS[held.reason]] += 1 + held.behind
            if not reasons:
                continue
            total = sum(reasons.values())
            # The step, and the pause after it.
            for place in (2 * row + 1, 2 * row + 2):
                if place < len(waits):
                    seconds = runs[place].sum()
                    waits[place] = 0.0
                    for part, number in reasons.items():
                        waits[place, PLACE[part]] += seconds * number / total
        return waits
