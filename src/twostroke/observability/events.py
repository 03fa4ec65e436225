"""One record per step, the same from the live engine, a recorded file and the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from twostroke.core.prefix_hit import PrefixHit
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import HostWait
from twostroke.core.speculation_config import DepthChange
from twostroke.core.step import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """The tiers at one moment; all but the first two count since the engine started.

    Attributes:
        blocks: Blocks that each tier holds.
        block_bytes: Bytes of one.
        saved_blocks: Blocks that were sent to each tier.
        loaded_blocks: Blocks that came back from it.
        loaded_state_parts: Those of them that are parts of recurrent states.
        block_size: Tokens per block.
        seconds_saved: Time of computing what was loaded, less the time of loading it.
        swapped_out: Preempted requests whose blocks were saved.
        swapped_in: Those of them that ran again.
        failed_loads: Loads that failed.
    """

    blocks: Mapping[str, int]
    block_bytes: int
    block_size: int
    saved_blocks: Mapping[str, int]
    loaded_blocks: Mapping[str, int]
    loaded_state_parts: Mapping[str, int] = field(default_factory=dict)
    seconds_saved: float = 0.0
    swapped_out: int = 0
    swapped_in: int = 0
    failed_loads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """The scheduler's state at one moment; the prefix and preemption counts are since the start.

    Attributes:
        num_running: Requests that hold blocks.
        num_waiting: Requests that wait for their first or (after preemption) next admission.
        num_deferred: Those of them that wait for a transfer, not for room.
        total_blocks: KV blocks that there are.
        free_blocks: Blocks that no request holds; they may still cache a prefix, which then can be
            evicted.
        cached_blocks: Blocks, held or free, whose content a prefix lookup can find.
        allocated_slots: Slots of all held blocks.
        used_slots: Those of them that hold a token.
        prefix_queries: Tokens looked up in the prefix cache.
        prefix_hits: Tokens found there.
        num_preemptions: Preemptions.
        tiers: What is in the tiers and what was moved, if there are any.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    allocated_slots: int = 0
    used_slots: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    tiers: TierStats | None = None


class ScheduledTokens(msgspec.Struct, frozen=True, kw_only=True):
    """One request's share of the step: ``num_tokens`` tokens from position ``start`` on.

    Attributes:
        num_prompt_tokens: How many of these are prompt tokens (prefill); the rest are output
            tokens, one while decoding, more under speculation or when a preempted request is
            computed again.
        sampled: Whether the step gave it a new token.
        num_new_tokens: How many it gave.
        num_blocks: Length of its block table.
        num_drafts: How many of ``num_tokens`` are drafts that the step verified.
        num_accepted_drafts: How many of these it accepted.
        queued_since: When it joined the queue, in the step that runs it for the first time.
    """

    request_id: str
    start: int
    num_tokens: int
    num_prompt_tokens: int
    sampled: bool
    num_new_tokens: int
    num_blocks: int
    num_drafts: int = 0
    num_accepted_drafts: int = 0
    queued_since: float | None = None


class PreemptedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that lost its blocks.

    ``by`` names the one that needed them (``None``: it yielded to all others).
    """

    request_id: str
    by: str | None = None


class HeldBackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that got fewer tokens than it lacks, or none.

    ``behind`` more wait behind it for the same reason.
    """

    request_id: str
    reason: Reason
    by: str | None = None
    behind: int = 0


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    reason: FinishReason


class MovedBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that began their way to or from a tier.

    ``request_id`` waits for them; it is empty for blocks that are saved.
    """

    tier: str
    block_ids: list[int]
    request_id: str = ""


class ChangedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A request's block table as far as a step changed it: from place ``first`` on, ``blocks``.

    Nothing tells of a table that goes: a request that ends or is preempted gives all blocks back.
    """

    request_id: str
    first: int
    blocks: list[int]


class LabelledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What its client calls a request that runs for the first time.

    Among the labels are ``user`` and ``prompt_cache_key``.
    """

    request_id: str
    labels: dict[str, str]


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was refused early: its first token would have come too late.

    Attributes:
        tenant: Whose call it was.
        predicted_ttft: Seconds until its first token, as predicted.
        ttft_target: Its target in seconds.
        factor: How many times the target it might have taken.
        ahead: Requests that would have gone before it; of a call that was let in, and then waited
            too long: calls that were waiting when it came.
    """

    request_id: str
    tenant: str
    predicted_ttft: float
    ttft_target: float
    factor: float
    ahead: int


class StartedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that runs for the first time: what stays the same for all of its steps.

    Attributes:
        arrival_time: When it joined the queue.
        max_total_tokens: Prompt and output may not exceed this together.
        num_cached_tokens: Prompt tokens that the prefix cache held.
        prefix_hit: Explains ``num_cached_tokens``, for models with recurrent layers only.
        prefix_keys: What the prompt begins with, at ``prefix_marks``: equal numbers are equal
            content up to there. Empty where blocks leave windows.
    """

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    max_total_tokens: int
    num_cached_tokens: int = 0
    tenant: str = ""
    priority: int = 0
    prefix_hit: PrefixHit | msgspec.UnsetType = msgspec.UNSET
    prefix_keys: list[int] = []


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step, its times in seconds on the engine's clock.

    A written event has no undefined fields, only ``None``; ``StartedRequest`` leaves one out.

    Attributes:
        step: Number of the step, from the plan.
        time: Start of the step.
        duration: Seconds, scheduling included.
        num_tokens: Tokens that went through the model.
        token_budget: Most tokens that could have; ``--tpot-target`` chooses it.
        num_running: After the step, as are ``num_waiting`` and the block counts (see
            ``SchedulerStats``).
        kv_waste: Share of the allocated slots that hold no token, in [0, 1].
        prefix_queries: Tokens looked up in the prefix cache in this step.
        prefix_hits: Tokens found there in this step.
        refused: Calls refused since the step before, by ``--admission predicted``.
        block_loads: Blocks that requests began to wait for.
        block_saves: Blocks that were saved to tiers.
        loaded: Requests whose blocks have arrived.
        failed_loads: Requests whose blocks will not arrive, and which compute instead.
        started: Requests that run for the first time.
        depths: How far ahead requests are guessed from this step on, and why, where that changes.
        block_tables: What the requests of ``scheduled`` got, in its order.
        timings: Seconds by component ("input", "forward", "sample", ...).
        host_wait: Why the next step was planned only when the result of this one was there, where
            that could be otherwise: on a GPU.
        error: Why the whole pass failed.
    """

    step: int
    time: float
    duration: float
    scheduled: list[ScheduledTokens] = []
    num_tokens: int = 0
    token_budget: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    allocated_slots: int = 0
    used_slots: int = 0
    kv_waste: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preempted: list[PreemptedRequest] = []
    held_back: list[HeldBackRequest] = []
    finished: list[FinishedRequest] = []
    labelled: list[LabelledRequest] = []
    refused: list[RefusedRequest] = []
    block_loads: list[MovedBlocks] = []
    block_saves: list[MovedBlocks] = []
    loaded: list[str] = []
    failed_loads: list[str] = []
    started: list[StartedRequest] = []
    depths: list[DepthChange] = []
    block_tables: list[ChangedTable] = []
    timings: dict[str, float] = {}
    host_wait: HostWait | None = None
    error: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(item.num_prompt_tokens for item in self.scheduled)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in a recorded file."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepEvent:
        """The inverse of ``to_dict``; unknown keys are ignored.

        Raises:
            msgspec.ValidationError: If a value is missing or of the wrong type.
        """
        return msgspec.convert(values, cls)

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)
