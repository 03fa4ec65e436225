"""From recorded steps to a job: who came when, what each step computed, how the engine is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twostroke.core.errors import InvalidRequestError
from twostroke.inspector.compare.messages import Question
from twostroke.inspector.source import Fit, FrameLimits, StepSource
from twostroke.observability.frames.columns import StepFrame
from twostroke.observability.frames.own import OWN_LABEL
from twostroke.questions.replay import RecordedStep, ReplayedRequest, ReplayJob, Settings

MAX_REQUESTS = 2000
MAX_SHARES_REPLAYED = 400_000  # a step's token for a request; each takes some microseconds
MAX_STEPS_READ = 16_384
LOOK_BACK = 2048  # steps before the range: for how its requests began, and to learn step times from
PAGE_STEPS, PAGE_SHARES = 2048, 32_768
# A limit on requests at once that no recording states; the largest of all defaults.
UNKNOWN_SEQS = 256
REPLAYED_POLICIES = ("fcfs", "priority", "fair")


@dataclass(slots=True)
class _Seen:
    """A request as far as the frames tell; it does not matter in which order they are read."""

    first: float  # when the first of its steps that were read began
    last: float
    started: bool = False
    arrival: float = 0.0
    prompt: int = 0
    cached: int = 0
    priority: int = 0
    tenant: str = ""
    output: int = 0
    first_token: float | None = None
    finish: float | None = None
    own: bool = False  # of the inspector itself

    @property
    def begin(self) -> float:
        return self.arrival if self.started else self.first


@dataclass
class Collected:
    """What was read: requests by id, steps, and what can be seen of the settings."""

    requests: dict[str, _Seen] = field(default_factory=dict)
    steps: list[RecordedStep] = field(default_factory=list)
    most_running: int = 0
    held_at: int = 0  # how many ran when a request waited for a place
    num_drafts: int = 0

    def add(self, frame: StepFrame) -> None:
        """Take in consecutive steps, none of them merged."""
        steps, shares = frame.steps, frame.shares
        for note in frame.notes:
            for started in note.started:
                seen = self._of(started.request_id, steps.time[note.row])
                seen.started, seen.arrival = True, started.arrival_time
                seen.prompt, seen.cached = started.num_prompt_tokens, started.num_cached_tokens
                seen.priority, seen.tenant = started.priority, started.tenant
            for name, labels in note.labels.items():
                self._of(name, steps.time[note.row]).own = OWN_LABEL in labels
            for held in note.held_back or ():
                if held.reason == "max_num_seqs":
                    self.held_at = max(self.held_at, steps.running[note.row])
        shapes = [RecordedStep(0, 0, [], 0, 0.0) for _ in steps.step]
        for index, row in enumerate(shares.row):
            begin, end = steps.time[row], steps.time[row] + steps.duration[row]
            seen = self._of(frame.ids[shares.request[index]], begin)
            seen.first, seen.last = min(seen.first, begin), max(seen.last, end)
            if new := shares.new[index]:
                seen.output += new
                if seen.first_token is None or end < seen.first_token:
                    seen.first_token = end
            _add_share(shapes[row], frame, index)
            self.num_drafts += shares.drafts[index]
        for note in frame.notes:
            for number, _ in note.finished:
                row = note.row
                seen = self._of(frame.ids[number], steps.time[row])
                seen.finish = steps.time[row] + steps.duration[row]
        for row, shape in enumerate(shapes):
            self.most_running = max(self.most_running, steps.running[row])
            shape.seconds, shape.time = _period(frame, row), steps.time[row]
            if shape.decode_requests or shape.prefill:
                self.steps.append(shape)

    def _of(self, request_id: str, time: float) -> _Seen:
        seen = self.requests.get(request_id)
        if seen is None:
            seen = self.requests[request_id] = _Seen(time, time)
        return seen


def _add_share(shape: RecordedStep, frame: StepFrame, index: int) -> None:
    shares = frame.shares
    tokens, drafts, start = shares.tokens[index], shares.drafts[index], shares.start[index]
    shape.sampled += shares.new[index] > 0
    if tokens - drafts == 1:
        shape.decode_requests += 1
        shape.decode_context += start + tokens
    elif tokens:
        shape.prefill.append((tokens, start))


def _period(frame: StepFrame, row: int) -> float:
    """Seconds of a step: while requests run, what passes until the next one counts to it."""
    steps = frame.steps
    seconds = steps.duration[row]
    if row + 1 < len(steps.step) and steps.running[row]:
        pause = steps.time[row + 1] - steps.time[row] - seconds
        if 0 < pause < seconds:  # longer ones are no part of a loop that runs
            seconds += pause
    return seconds


async def collect(source: StepSource, begin: float, end: float) -> Collected:
    """The steps of a range, those that its requests still had after it, and some before it."""
    collected = Collected()
    first, last, known = source.step_at(begin), source.step_at(end), source.describe().last_step
    step, read = first, 0
    while step <= known and read < MAX_STEPS_READ:
        frame = await _page(source, step, known + 1, "first")
        if frame.last < step:
            break
        read += frame.last + 1 - step
        step = frame.last + 1
        collected.add(frame)
        if step > last and not any(
            seen.finish is None and seen.arrival <= end for seen in collected.requests.values()
        ):
            break
    step, read = first, 0
    while step > 0 and read < LOOK_BACK:
        frame = await _page(source, max(0, step - LOOK_BACK), step, "last")
        if frame.first < 0 or frame.first >= step:
            break
        read += step - frame.first
        step = frame.first
        collected.add(frame)
    return collected


async def _page(source: StepSource, begin: int, end: int, fit: Fit) -> StepFrame:
    return await source.frame(begin, end, None, FrameLimits(PAGE_STEPS, PAGE_SHARES, fit))


def _replayed(name: str, seen: _Seen, *, in_range: bool) -> ReplayedRequest:
    return ReplayedRequest(
        name,
        seen.arrival,
        seen.prompt,
        max(1, seen.output),
        min(seen.cached, seen.prompt - 1),
        seen.priority,
        seen.tenant,
        seen.first_token,
        seen.finish,
        in_range,
    )


def make_job(
    source: StepSource, question: Question, collected: Collected
) -> tuple[ReplayJob, int, list[str]]:
    """The job, how many requests are left out, and notes.

    Raises:
        InvalidRequestError: Nothing to replay, or too much.
    """
    inside = {
        name: seen
        for name, seen in collected.requests.items()
        if seen.begin <= question.end and seen.last >= question.begin
    }
    # The inspector's own requests only run beside those of users, where there are any.
    inside = {name: seen for name, seen in inside.items() if not seen.own} or inside
    # Who ran beside them took part of their steps, within the range or not.
    since = min((seen.begin for seen in inside.values() if seen.started), default=0.0)
    until = max((seen.last for seen in inside.values()), default=0.0)
    requests = [
        _replayed(name, seen, in_range=name in inside)
        for name, seen in collected.requests.items()
        if seen.started and seen.prompt > 0 and seen.begin <= until and seen.last >= since
    ]
    requests.sort(key=lambda request: (request.arrival, request.request_id))
    num_inside = sum(request.in_range for request in requests)
    if not num_inside:
        raise InvalidRequestError(
            "no request in this range has its beginning in the recorded steps",
            param="begin",
            hint="choose a range in which a request arrives",
        )
    shares = sum(request.output for request in requests)
    if len(requests) > MAX_REQUESTS or shares > MAX_SHARES_REPLAYED:
        raise InvalidRequestError(
            f"this range has {len(requests):,} requests with {shares:,} output tokens; a replay"
            f" takes at most {MAX_REQUESTS:,} and {MAX_SHARES_REPLAYED:,}",
            param="end",
            hint="choose a shorter range",
        )
    description = source.describe()
    recorded, notes = _settings(description.configuration, collected)
    if collected.num_drafts:
        notes.append("Both sides run without drafts, which the recorded steps had.")
    job = ReplayJob(
        requests,
        sorted(collected.steps, key=lambda step: step.time),
        recorded,
        _changed(recorded, question, requests),
        description.num_blocks,
        description.block_size,
    )
    return job, len(inside) - num_inside, notes


def _settings(
    configuration: Mapping[str, object], collected: Collected
) -> tuple[Settings, list[str]]:
    """How the engine was set, as far as its description tells; and notes on the rest."""
    notes: list[str] = []
    policy = str(configuration.get("policy", "fcfs"))
    if policy not in REPLAYED_POLICIES:
        notes.append(f"Both sides run in order of arrival, not under policy {policy}.")
        policy = "fcfs"
    budget = _number(configuration.get("max_num_batched_tokens")) or 2048
    seqs = _number(configuration.get("max_num_seqs")) or collected.held_at
    if not seqs:
        seqs = max(UNKNOWN_SEQS, collected.most_running)
        notes.append(f"The recording states no --max-num-seqs: {seqs} is taken on both sides.")
    chunk = _number(configuration.get("max_prefill_chunk"))
    return Settings("continuous", budget, seqs, chunk, policy), notes


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _changed(recorded: Settings, question: Question, requests: list[ReplayedRequest]) -> Settings:
    """The other side's settings: the recorded ones but for what is asked."""
    budget, chunk = recorded.max_num_batched_tokens, recorded.max_prefill_chunk
    batching: str = "continuous"
    if question.against == "static":
        batching = "static"
    elif question.against == "whole":
        # Room for the longest prompt and everybody's next token: no prompt is ever cut.
        longest = max(request.prompt for request in requests)
        budget, chunk = max(budget, longest + recorded.max_num_seqs), None
    elif question.against == "chunk":
        chunk = question.tokens
    else:
        budget = question.tokens or budget
    return Settings(
        "static" if batching == "static" else "continuous",
        budget,
        recorded.max_num_seqs,
        chunk,
        recorded.policy,
    )
