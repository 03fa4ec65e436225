"""An engine's state at one moment, as far as nobody can tell it from step events."""

from __future__ import annotations

import msgspec

from twostroke.core.prefix_hit import PrefixHit
from twostroke.core.request import BlockKey, Request


class RequestSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One request at one moment; times in seconds on the engine's clock.

    Attributes:
        status: ``waiting``, ``loading``, ``held``, ``running`` or ``finished``.
        num_blocks: Length of its block table.
        num_cached_tokens: Prompt tokens that the prefix cache held at its first admission.
        prefix_hit: Explains ``num_cached_tokens``, for models with recurrent layers only.
    """

    request_id: str
    status: str
    num_prompt_tokens: int
    max_total_tokens: int
    arrival_time: float
    tenant: str = ""
    labels: dict[str, str] = {}
    priority: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_blocks: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finish_time: float | None = None
    finish_reason: str | None = None
    prefix_hit: PrefixHit | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, request: Request, num_blocks: int = 0) -> RequestSnapshot:
        return cls(
            request_id=request.request_id,
            status=request.status.value,
            num_prompt_tokens=request.num_prompt_tokens,
            max_total_tokens=request.max_total_tokens,
            arrival_time=request.arrival_time,
            tenant=request.tenant,
            labels=dict(request.spec.labels),
            priority=request.spec.priority,
            num_computed_tokens=request.num_computed_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_blocks=num_blocks,
            num_preemptions=request.num_preemptions,
            first_scheduled_time=request.first_scheduled_time,
            first_token_time=request.first_token_time,
            finish_time=request.finish_time,
            finish_reason=None if request.finish_reason is None else request.finish_reason.value,
            prefix_hit=msgspec.UNSET if request.prefix_hit is None else request.prefix_hit,
        )


class BlockState(msgspec.Struct, frozen=True, kw_only=True):
    """Every KV block: who holds it, what it caches, when it goes.

    Attributes:
        block_size: Tokens per block.
        tables: Block ids of each request that holds some, in order of position; -1 where one was
            given back (``kv_cache/block_table.py``).
        cached: Blocks by content, held or free: what a prefix lookup can find.
        free: Free blocks; the one that is allocated next comes first.
        chains: Contents of running and lately ended requests; see ``PrefixChain``.
    """

    num_blocks: int
    block_size: int
    tables: dict[str, list[int]]
    cached: dict[BlockKey, int]
    free: list[int]
    chains: list[PrefixChain]


class PrefixChain(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one request's full blocks in order of position.

    Attributes:
        num_found: How many of them, from the first on, it found in the cache when it came.
    """

    request_id: str
    tenant: str
    keys: list[BlockKey]
    num_found: int


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Taken between two steps, so that its parts agree.

    Attributes:
        time: On the engine's clock.
        unix_time: The time of the snapshot on the wall clock.
        running: In the order in which they were admitted.
        waiting: In order of arrival; the first ones, where there are many.
        waiting_left_out: Those that wait and are not in ``waiting``.
        ended: The latest ones, oldest first.
        blocks: Only where asked for.
    """

    time: float
    unix_time: float
    running: list[RequestSnapshot]
    waiting: list[RequestSnapshot]
    ended: list[RequestSnapshot]
    waiting_left_out: int = 0
    blocks: BlockState | None = None
