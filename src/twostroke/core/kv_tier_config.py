"""Where keys and values go when the KV cache is full: the flags, and what moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.flags.declared import SIZE, Must, at_least, check_fields, within
from twostroke.core.kv_groups import is_state_key
from twostroke.core.network.address import is_address
from twostroke.core.request import BlockKey

PreemptionName = Literal["recompute", "swap", "auto"]


def _size_from(least: int) -> Must:
    return within(least, 2**63 - 1, "a size such as 4GiB")


LoadShare = Must("above 0, at most 10", lambda share: 0 < share <= 10)


class DefaultSize(int):
    """Bytes, which the help shows as people write them."""

    def __str__(self) -> str:
        return format_bytes(int(self)).replace(".00", "").replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierConfig:
    """Slower memory below the KV cache: answers stay the same, less is computed again."""

    preemption: PreemptionName = "recompute"
    """What happens to the KV blocks of a request that must wait for room: `recompute` drops them,
    `swap` copies them to --swap-space, `auto` does what its measurements say is faster.
    """
    swap_space: Annotated[int, SIZE, _size_from(1)] = DefaultSize(4 << 30)
    """Bytes for swapped blocks (accepts 4GiB): host memory beside a GPU; on a CPU temporary files,
    in --kv-disk if that is given. A plain number below 1024 means GiB, as in vLLM.
    """
    kv_host_memory: Annotated[int, SIZE, _size_from(0)] = 0
    """Bytes of host memory for prefix blocks that the KV cache evicts; meant for a GPU."""
    kv_disk: Annotated[str | None, Must("a folder", bool)] = None
    """Folder for prefix blocks. A restarted server finds there what it had; one process owns it."""
    kv_disk_size: Annotated[int, SIZE, _size_from(1)] = DefaultSize(20 << 30)
    """Most bytes in --kv-disk; what was used least recently goes first."""
    kv_load_share: Annotated[float, LoadShare] = 0.1
    """How much longer a step may take because loaded blocks are copied into the KV cache."""
    kv_events: bool = False
    """Publish what the KV cache and the tiers store and remove, at /v1/cache/events."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.swap_space < 1024:
            object.__setattr__(self, "swap_space", self.swap_space << 30)

    @property
    def needs_tiers(self) -> bool:
        """Whether any block ever leaves the KV cache for another place."""
        return self.preemption != "recompute" or bool(self.kv_host_memory) or bool(self.kv_disk)


KVTransferName = Literal["tcp", "nixl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferConfig:
    """Which engines give others the KV blocks of prompts: set by what starts them, not by flags.

    Places are HOST:PORT, or Unix sockets in a folder that only this user can open.
    """

    kv_offered_at: Annotated[str | None, Must("a place", bool)] = None
    """Where other engines fetch blocks that this one has filled."""
    kv_offered_memory: Annotated[int, at_least(1, "a positive size")] = 1 << 30
    """Bytes of host memory for them."""
    kv_fetched_from: tuple[str, ...] = ()
    """Where this engine fetches blocks, by the number of the engine that has them."""
    kv_fetched_by_address: bool = False
    """Whether it fetches blocks from the address that a request brings."""
    kv_transfer: KVTransferName = "tcp"
    """How blocks cross."""
    kv_token_file: str | None = None
    """File with the secret of all that give and fetch; none is needed within a machine."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_between_machines(self) -> bool:
        """Whether what it is called on one machine must be what it is called on another."""
        return self.kv_fetched_by_address or is_address(self.kv_offered_at or "")

    @property
    def is_used(self) -> bool:
        fetches = self.kv_fetched_by_address or bool(self.kv_fetched_from)
        return fetches or self.kv_offered_at is not None


NO_EXCHANGE = KVTransferConfig()


def peer_name(number: int) -> str:
    """The tier of the blocks that engine ``number`` of those that offer some has."""
    return f"peer{number}"


class BlockTransfer(msgspec.Struct, frozen=True):
    """Blocks to be loaded from, or saved to, a tier outside the executor's own KV memory.

    Attributes:
        request_id: The request that waits for them; empty for blocks that are saved for any.
        block_ids: KV blocks of the executor; ``keys`` are their contents, in the same order. A
            transfer of recurrent states has parts of slots instead, numbered after all blocks.
        tier: Its name.
    """

    request_id: str
    block_ids: list[int]
    keys: list[BlockKey]
    tier: str = ""

    @property
    def is_of_states(self) -> bool:
        return any(map(is_state_key, self.keys[:1]))


class TierChange(msgspec.Struct, frozen=True):
    """What a tier has got and lost since it was last asked.

    Attributes:
        refused: What it was to save and did not: it had no room, or no time to write.
        num_loaded: Blocks that came from it into the executor's KV blocks.
        load_seconds: What fetching and copying these took, beside whatever else ran.
    """

    tier: str
    stored: list[BlockKey] = []
    removed: list[BlockKey] = []
    refused: list[BlockKey] = []
    num_loaded: int = 0
    load_seconds: float = 0.0
