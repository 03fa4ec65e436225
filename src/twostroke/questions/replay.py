"""What a replay is given and what it answers, as they travel to its process and back."""

from __future__ import annotations

import msgspec

from twostroke.core.config import Batching
from twostroke.observability.frames.columns import StepFrame


class ReplayedRequest(msgspec.Struct):
    """One request as it was recorded; times are seconds on the engine's clock.

    Attributes:
        output: Tokens that it got, of those that are known.
        cached: Prompt tokens that the prefix cache held.
        first_token: When its first token came, if it has.
        finish: When it ended, if it has.
        in_range: Whether it was there in the range; the others are its competitors.
    """

    request_id: str
    arrival: float
    prompt: int
    output: int
    cached: int = 0
    priority: int = 0
    tenant: str = ""
    first_token: float | None = None
    finish: float | None = None
    in_range: bool = True


class RecordedStep(msgspec.Struct, array_like=True):
    """What a recorded step computed, and how long it took.

    Attributes:
        prefill: New tokens, and tokens before them, of each chunk of a prompt.
        seconds: Until the next step, where that followed at once.
        time: When it began, on the engine's clock.
    """

    decode_requests: int
    decode_context: int
    prefill: list[tuple[int, int]]
    sampled: int
    seconds: float
    time: float = 0.0


class Settings(msgspec.Struct):
    """How a side batches. ``policy`` is one whose order depends on the requests alone."""

    batching: Batching = "continuous"
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_prefill_chunk: int | None = None
    policy: str = "fcfs"


class ReplayJob(msgspec.Struct):
    """What the replay's process is given."""

    requests: list[ReplayedRequest]
    steps: list[RecordedStep]
    recorded: Settings
    other: Settings
    num_blocks: int
    block_size: int


class Side(msgspec.Struct):
    """One simulated run.

    Attributes:
        frame: Its steps, with the recorded requests' ids; times as in the recording.
        first_token: By request, in the job's order; ``None`` of one that could not run.
        finish: By request, in that order; ``None`` for one that could not run.
        longest_gap: Seconds between two tokens of one request, the longest of all.
        p99_gap: What one in a hundred gaps exceeds.
    """

    settings: Settings
    frame: StepFrame
    first_token: list[float | None]
    finish: list[float | None]
    longest_gap: float = 0.0
    p99_gap: float = 0.0


class StepTimesFit(msgspec.Struct):
    """How the step times were found.

    Attributes:
        num_steps: Recorded steps that the coefficients were fitted to.
        median_error: Median error of the estimates, as a share.
        speed: Work done by all recorded steps over the time that they took; 1 where the machine was
            as fast as in its median step.
        coefficients: By name, in seconds.
    """

    num_steps: int
    median_error: float
    coefficients: dict[str, float]
    speed: float = 1.0


class Replay(msgspec.Struct):
    """What the replay's process answers."""

    fit: StepTimesFit
    recorded: Side
    other: Side


class Failure(msgspec.Struct):
    """What the replay's process answers in place of a ``Replay``."""

    failed: str
    hint: str = ""
