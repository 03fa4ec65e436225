"""The seam between the KV manager and recurrent state, and what follows its checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from twostroke.core.request import BlockKey, Request
from twostroke.core.step import StateChange
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.prefix_needs import PrefixNeeds


class Loss(Enum):
    """Why a checkpoint is found no more.

    ``EVICTED``: its slot was needed. ``REPLACED``: a later one of the same answer took its place.
    ``WRONG``: its content may be wrong, and must be found nowhere.
    """

    EVICTED = "evicted"
    REPLACED = "replaced"
    WRONG = "wrong"


class CheckpointWatcher(Protocol):
    """Is told of each change of what checkpoints are found, in order, while it happens.

    That all are forgotten, ``CacheWatcher.on_cleared`` says.
    """

    def on_checkpoint(self, key: BlockKey, slot: int, *, lasts: bool) -> None:
        """The state after a block, in a slot, is found from now on by the block's key.

        Args:
            lasts: Nothing of its request takes its place. Said again when that becomes so.
        """

    def on_checkpoint_lost(self, key: BlockKey, slot: int, loss: Loss) -> None:
        """It is found no more; the slot still holds it."""


class States(Protocol):
    """What the KV manager asks of a model's recurrent state.

    Attributes:
        exist: Whether the model has any.
        num_slots: Slots of all requests and checkpoints together.
        pool: Manages the slots; contents are the keys of the blocks that checkpoints come after.
        num_parts: Blocks' sizes that a state takes in tiers; 0: they keep none.
    """

    @property
    def exist(self) -> bool: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def pool(self) -> BlockPool: ...
    @property
    def num_parts(self) -> int: ...

    def watch(self, watcher: CheckpointWatcher) -> None:
        """Tell ``watcher`` from now on what checkpoints there are."""
        ...

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        """The keys of the longest prefix at whose end a state exists, besides all blocks.

        Args:
            keys: The keys of all blocks of a text that might be found, by block index, then group.
            needs: Which blocks a prefix is made of.
            has: Whether the block of a key exists.
        """
        ...

    def has_room(self, request: Request, num_cached: int) -> bool:
        """Whether there is a slot for a request that starts after ``num_cached`` tokens."""
        ...

    def admit(self, request: Request, num_cached: int) -> None:
        """Give a waiting request a slot; the caller has asked ``has_room``."""
        ...

    def max_drafts(self, request: Request) -> int:
        """How many drafts a running request's next share may verify."""
        ...

    def plan(self, request: Request, num_tokens: int, num_drafts: int = 0) -> StateChange | None:
        """What a step does with slots, whose last tokens are drafts; ``None``: nothing new."""
        ...

    def commit(self, request: Request, start: int) -> None:
        """After a step, with the keys of full blocks known: keep what was accepted.

        Args:
            start: Where its share began; the next step may be planned already.
        """
        ...

    def latest(self, request: Request, keys: Sequence[BlockKey]) -> tuple[int, int] | None:
        """The last block of a running request after which a state is there, and the state's slot.

        Between two steps, or while one is planned. Its own state counts where a block ends.

        Args:
            keys: Keys of its blocks whose tokens are all computed.
        """
        ...

    def can_load(self, request: Request, key: BlockKey) -> bool:
        """Whether there is a slot for the state after a block, and then for a waiting request."""
        ...

    def begin_load(self, request_id: str, key: BlockKey) -> int | None:
        """Hold the state after a block for a request.

        Returns the slot to be filled until ``end_load``, if it is not here already.
        """
        ...

    def end_load(self, request_id: str, *, loaded: bool) -> None:
        """Let lookups find what was loaded, if it was; nothing happens where none was begun."""
        ...

    def free(self, request: Request, *, discard: bool = False) -> None:
        """Release all slots of a request.

        Args:
            discard: What it computed may be wrong: lookups find no checkpoint of its text any more.
        """
        ...

    def clear(self) -> None:
        """Forget all checkpoints; running requests go on."""
        ...

    def check_integrity(self) -> None:
        """Assert that the pool agrees with the slots that requests hold."""
        ...


class NoStates:
    """The ``States`` of a model whose layers all keep keys and values."""

    exist, num_slots, num_parts = False, 0, 0
    pool = BlockPool(0)

    def watch(self, watcher: CheckpointWatcher) -> None:
        """There will be no checkpoint."""

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        return keys

    def has_room(self, request: Request, num_cached: int) -> bool:
        return True

    def admit(self, request: Request, num_cached: int) -> None:
        """It needs no slot."""

    def max_drafts(self, request: Request) -> int:
        return sys.maxsize

    def plan(self, request: Request, num_tokens: int, num_drafts: int = 0) -> StateChange | None:
        return None

    def commit(self, request: Request, start: int) -> None:
        """There is no checkpoint."""

    def latest(self, request: Request, keys: Sequence[BlockKey]) -> tuple[int, int] | None:
        return None

    def can_load(self, request: Request, key: BlockKey) -> bool:
        return True

    def begin_load(self, request_id: str, key: BlockKey) -> int | None:
        return None

    def end_load(self, request_id: str, *, loaded: bool) -> None:
        """None was begun."""

    def free(self, request: Request, *, discard: bool = False) -> None:
        """It has no slot."""

    def clear(self) -> None:
        """There is no checkpoint."""

    def check_integrity(self) -> None:
        """There is nothing to go wrong."""


NO_STATES = NoStates()
