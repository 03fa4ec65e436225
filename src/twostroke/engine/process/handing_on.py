"""Which engines compute prompts for others, by what they have said of themselves."""

from __future__ import annotations

from twostroke.engine.executor import ExecutorInfo


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
