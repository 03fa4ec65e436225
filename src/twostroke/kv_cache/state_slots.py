"""Recurrent state of requests, in slots of one size, and checkpoints that a prefix hit starts from.

Keys and values grow with a text, and any block boundary of it can be gone back to. A recurrent
layer has one state instead, which each token changes: going back needs a copy from before. So at
some block boundaries the executor copies a request's state into a slot of its own, a *checkpoint*,
which is found by the content of all tokens up to there, kept and evicted like a block.

A checkpoint is made at the last boundary within a prompt, where it parts from an earlier one, at
every ``spacing`` blocks, and, while an answer grows, at each of its boundaries, where it takes the
place of the one before: so the next turn of a conversation starts where this one ended. All of them
are optional: without a free slot none is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twostroke.core.request import BlockKey, Request
from twostroke.core.step import NO_SLOT, StateChange
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.prefix_needs import PrefixNeeds


class States(Protocol):
    """What the KV manager asks of a model's recurrent state.

    Attributes:
        exist: Whether the model has any.
        num_slots: Of all requests and checkpoints together.
    """

    @property
    def exist(self) -> bool: ...
    @property
    def num_slots(self) -> int: ...

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        """The keys of the longest prefix at whose end a state exists, besides all blocks.

        Args:
            keys: Of all blocks of a text that might be found, those of each position in a row.
            needs: Which of them a prefix is made of; ``has``: which exist.
        """
        ...

    def has_room(self, request: Request, num_cached: int) -> bool:
        """Whether there is a slot for a request that starts after ``num_cached`` tokens."""
        ...

    def admit(self, request: Request, num_cached: int) -> None:
        """Give a waiting request a slot; the caller has asked ``has_room``."""
        ...

    def plan(self, request: Request, num_tokens: int) -> StateChange | None:
        """What a step of ``num_tokens`` known tokens does with slots; ``None``: nothing new."""
        ...

    def commit(self, request: Request) -> None:
        """After a step that filled blocks, whose keys are known: index its checkpoints."""
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
    """Of a model whose layers all keep keys and values."""

    exist, num_slots = False, 0

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        return keys

    def has_room(self, request: Request, num_cached: int) -> bool:
        return True

    def admit(self, request: Request, num_cached: int) -> None:
        """It needs no slot."""

    def plan(self, request: Request, num_tokens: int) -> StateChange | None:
        return None

    def commit(self, request: Request) -> None:
        """There is no checkpoint."""

    def free(self, request: Request, *, discard: bool = False) -> None:
        """It has no slot."""

    def clear(self) -> None:
        """There is no checkpoint."""

    def check_integrity(self) -> None:
        """There is nothing to go wrong."""


NO_STATES = NoStates()


@dataclass(slots=True)
class _States:
    """A running request's slots.

    Attributes:
        live: Its state after its last computed token.
        start: The checkpoint that its first step copies; ``NO_SLOT``: it starts from zeros.
        is_new: Whether the executor has not been told of ``live``.
        pending: Checkpoints that the step under way makes: position in blocks, and slot.
        latest: The latest checkpoint within its answer, which the next one replaces.
    """

    live: int
    start: int
    is_new: bool = True
    pending: list[tuple[int, int]] = field(default_factory=list)
    latest: int = NO_SLOT


class StateSlots:
    """Owns every slot. Pure, like the KV manager that it is part of; see ``States``.

    Args:
        num_slots: That the executor holds.
        block_size: Tokens per block.
        spacing: Blocks between two checkpoints that outlive the next one.
        num_groups: Blocks, and so keys, for each position; the first one's finds the state.
        enable_prefix_caching: Whether checkpoints are made at all.
    """

    exist = True

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        spacing: int,
        num_groups: int = 1,
        *,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.num_slots = num_slots
        self.pool = BlockPool(num_slots)
        self._size = block_size
        self._spacing = spacing
        self._num_groups = num_groups
        self._caches_prefixes = enable_prefix_caching
        self._requests: dict[str, _States] = {}

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        count = self._num_groups
        length = len(keys) // count
        while length:
            end = needs.longest(keys[: length * count], has)
            length = self._latest(keys, end)
            if length == end:
                break
        return keys[: length * count]

    def has_room(self, request: Request, num_cached: int) -> bool:
        slot = self._find(request, num_cached)
        return self.pool.num_free > (slot != NO_SLOT and self.pool.is_free(slot))

    def admit(self, request: Request, num_cached: int) -> None:
        assert request.request_id not in self._requests, "a waiting request holds no slot"
        start = self._find(request, num_cached)
        assert (start == NO_SLOT) == (num_cached == 0), "a prefix ends at a checkpoint"
        if start != NO_SLOT:
            self.pool.hold(start)
        self._requests[request.request_id] = _States(self.pool.allocate(), start)

    def plan(self, request: Request, num_tokens: int) -> StateChange | None:
        states = self._requests[request.request_id]
        is_new, states.is_new = states.is_new, False
        if not is_new and states.start != NO_SLOT:  # its first step has copied that
            self.pool.release(states.start)
            states.start = NO_SLOT
        first = request.num_computed_tokens
        checkpoints: list[tuple[int, int]] = []
        for position in self._positions(request, first, first + num_tokens):
            if not self.pool.num_free:
                break
            slot = self.pool.allocate()
            states.pending.append((position, slot))
            checkpoints.append((position * self._size - first, slot))
        if not (is_new or checkpoints):
            return None
        return StateChange(states.live, states.start if is_new else None, checkpoints)

    def commit(self, request: Request) -> None:
        states, keys = self._requests[request.request_id], request.block_hashes
        for position, slot in states.pending:
            entry = (position - 1) * self._num_groups
            is_computed = position * self._size <= request.num_computed_tokens
            if is_computed and entry < len(keys) and self.pool.index(slot, keys[entry]):
                self._drop_latest(states)
                if not self._is_kept(request, position):
                    states.latest = slot
                    continue
            self.pool.release(slot)
        states.pending.clear()

    def free(self, request: Request, *, discard: bool = False) -> None:
        states = self._requests.pop(request.request_id, None)
        if states is None:
            return
        held = [states.live, states.start, states.latest, *(slot for _, slot in states.pending)]
        if discard:
            self._discard(request.block_hashes)
        for slot in held:
            if slot != NO_SLOT:
                self.pool.release(slot)

    def clear(self) -> None:
        self.pool.clear()

    def _latest(self, keys: Sequence[BlockKey], length: int) -> int:
        """The last position up to ``length`` at which a checkpoint exists; 0 is the start."""
        while length and self.pool.find(keys[(length - 1) * self._num_groups]) is None:
            length -= 1
        return length

    def _find(self, request: Request, num_tokens: int) -> int:
        """The slot of a request's checkpoint after ``num_tokens``; ``NO_SLOT``: none."""
        if not num_tokens:
            return NO_SLOT
        key = request.block_hashes[(num_tokens // self._size - 1) * self._num_groups]
        slot = self.pool.find(key)
        return NO_SLOT if slot is None else slot

    def _positions(self, request: Request, first: int, end: int) -> list[int]:
        """Where a step makes checkpoints that computes the tokens ``first`` to ``end - 1``."""
        if not self._caches_prefixes:
            return []
        return [
            position
            for position in range(first // self._size + 1, end // self._size + 1)
            if position * self._size >= request.num_prompt_tokens
            or self._is_kept(request, position)
        ]

    def _is_kept(self, request: Request, position: int) -> bool:
        """Whether the checkpoint outlives the next one: only those within an answer do not.

        The last token of a prompt is computed in any case, so no prefix of it ends after it. Where
        it goes another way than one before it (blocks were there, no state), others may as well.
        """
        prompt_end, hit = (request.num_prompt_tokens - 1) // self._size, request.prefix_hit
        return (
            position % self._spacing == 0
            or position == prompt_end
            or (hit is not None and position * self._size == hit.block_tokens)
        )

    def _drop_latest(self, states: _States) -> None:
        slot, states.latest = states.latest, NO_SLOT
        if slot != NO_SLOT:
            if not self.pool.is_shared(slot):
                self.pool.unindex(slot)
            self.pool.release(slot)

    def _discard(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            slot = self.pool.find(key)
            if slot is not None:
                self.pool.hold(slot)
                self.pool.unindex(slot)
                self.pool.release(slot)

    def check_integrity(self) -> None:
        holders = Counter[int]()
        for request_id, states in self._requests.items():
            own = [states.live, states.latest, *(slot for _, slot in states.pending)]
            own = [slot for slot in own if slot != NO_SLOT]
            assert len(set(own)) == len(own), f"{request_id} holds a slot twice"
            holders.update(own)
            if states.start != NO_SLOT:
                holders[states.start] += 1
        self.pool.check_integrity(holders)
