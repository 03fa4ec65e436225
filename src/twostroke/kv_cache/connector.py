"""The seam of everything that keeps KV blocks outside the executor's own memory.

Tiers implement it (``kv_tiers/``), and transfers between engines will.

A block is opaque here: the bytes of all layers' tensors of one KV block, whatever their format,
always ``block_bytes`` of them. Its key is its content (``core.request.BlockKey``): a hash of its
tokens, of all tokens before it, of the model and of the salt. So a key is never given other
content, and nobody finds a block without knowing its salt and its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twostroke.core.kv_tier_config import TierChange
from twostroke.core.request import BlockKey


class ArrivedBlock(NamedTuple):
    """A block that ``load`` asked for.

    ``data`` is ``block_bytes`` long and valid until the connector is called again. ``None``: it is
    not there (any more), or broken; a ``removed`` of ``changes`` then names the key too.
    ``seconds`` is what fetching it took.
    """

    ticket: str
    key: BlockKey
    data: memoryview | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierInfo:
    """What the scheduler must know of a tier when the engine starts.

    Attributes:
        name: Name in flags, metrics and events: ``swap``, ``host``, ``disk``, ``offered``, or
            ``peer0`` and so on.
        num_blocks: How many blocks it holds at most.
        block_bytes: Bytes of one.
        keys: What it holds already.
        saves_filled: Blocks are saved as soon as they are full. Otherwise when they are evicted.
        for_swap: Only for blocks of preempted requests. It forgets none of itself: when it is
            full, it takes no more.
        states_alone: The model's blocks hold nothing: only states of recurrent layers are kept.
        loads_only: Its blocks are another engine's: requests say which it has
            (``core.prefix_hit.KVOffer``), and nothing is saved there.
        by_address: No tier, but the engine fetches from any whose name is an address, HOST:PORT.
        place: Where other engines fetch what it holds: HOST:PORT, or a path.
    """

    name: str
    num_blocks: int
    block_bytes: int = 0
    keys: Sequence[BlockKey] = ()
    saves_filled: bool = False
    for_swap: bool = False
    states_alone: bool = False
    loads_only: bool = False
    by_address: bool = False
    place: str = ""


class KVConnector(Protocol):
    """A place for blocks. The executor's thread calls everything; no call waits for a device.

    What takes time happens elsewhere (on a thread, on a network card). The connector sets the
    event that it was made with when there is something to fetch with ``changes`` or ``arrived``.
    """

    @property
    def info(self) -> TierInfo: ...

    def save(self, key: BlockKey, block: memoryview) -> bool:
        """Take a block in. ``False``: there is no room for it now.

        ``block`` [block_bytes] is the connector's from here on; nobody changes it. The key can be
        loaded from now on; ``changes`` reports it as stored, and as removed if it could not be kept
        after all.
        """

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        """Begin to fetch blocks. Each comes once through ``arrived``, in this order, or fails."""

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        """Up to ``limit`` of the blocks that have come since."""

    def drop(self, keys: Iterable[BlockKey]) -> None:
        """Forget these keys; unknown ones are ignored."""

    def changes(self) -> TierChange:
        """What it has stored and lost since it was last asked. A key is in one of both lists."""

    def close(self) -> None:
        """Finish what was begun, within seconds; what lasts is then safe to open again."""
