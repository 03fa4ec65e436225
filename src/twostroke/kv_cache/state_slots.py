"""Recurrent state of requests, in slots of one size, and checkpoints that a prefix hit starts from.

Keys and values grow with a text, and any block boundary of it can be gone back to. A recurrent
layer has one state instead, which each token changes: going back needs a copy from before. So at
some block boundaries the executor copies a request's state into a slot of its own, a *checkpoint*,
which is found by the content of all tokens up to there, kept and evicted like a block.

A checkpoint is made at the last boundary within a prompt, where it parts from an earlier one, at
every ``spacing`` blocks, and, while an answer grows, at each of its boundaries, where it takes the
place of the one before: so the next turn of a conversation starts where this one ended. All of them
are optional: without a free slot none is made.

A share that may be taken back (its drafts rejected, its draw repeated) goes on from a copy and
writes the state after its known tokens, and after each draft but the last, to slots of their own:
the request's slot is then the one after what was accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from twostroke.core.request import BlockKey, Request
from twostroke.core.step import NO_SLOT, StateChange
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.prefix_needs import PrefixNeeds
from twostroke.kv_cache.states import CheckpointWatcher, Loss


@dataclass(slots=True)
class _States:
    """A running request's slots.

    Attributes:
        live: Its state after its last computed token.
        start: The checkpoint that its first step copies; ``NO_SLOT``: it starts from zeros.
        is_new: Whether the executor has not been told of ``live``.
        moved: Whether the executor knows another slot than ``live``.
        pending: Checkpoints that the step under way makes: blocks before each, and its slot.
        latest: The latest checkpoint within its answer, which the next one replaces.
        spare: A second slot, if draws may be repeated since the answer has a form.
        trial: The share under way, if it may be taken back.
    """

    live: int
    start: int
    is_new: bool = True
    moved: bool = False
    pending: list[tuple[int, int]] = field(default_factory=list)
    latest: int = NO_SLOT
    spare: int = NO_SLOT
    trial: _Trial | None = None

    def before_step(self) -> int:
        """The slot with the state after all computed tokens, be it that a step is planned already;
        ``NO_SLOT``: its first step has not run.
        """
        if self.is_new or self.start != NO_SLOT:
            return NO_SLOT
        return self.live if self.trial is None else self.trial.before

    def held(self) -> list[int]:
        """All slots but ``start``."""
        trial = [] if self.trial is None else [self.trial.before, *self.trial.drafts]
        pending = [slot for _, slot in self.pending]
        slots = [self.live, self.latest, self.spare, *pending, *trial]
        return [slot for slot in slots if slot != NO_SLOT]


class _StateLoad(NamedTuple):
    """A slot that is held while blocks before its state are loaded.

    Attributes:
        key: Key of the block that the state comes after; it is loaded meanwhile, too.
    """

    key: BlockKey | None
    slot: int


class _Trial(NamedTuple):
    """A share that may be taken back, as a whole or from some draft on.

    Attributes:
        begin: Tokens that were computed before the share.
        end: Tokens computed once its known ones are.
        before: The state before it; ``NO_SLOT``: the request starts anew.
        drafts: States after the known tokens and 0, 1, ... drafts; ``live`` is that after all.
    """

    begin: int
    end: int
    before: int
    drafts: list[int]


class StateSlots:
    """Owns every slot. Pure, like the KV manager that it is part of; see ``States``.

    Args:
        num_slots: That the executor holds.
        block_size: Tokens per block.
        spacing: Blocks between two checkpoints that outlive the next one.
        num_groups: Blocks, and so keys, of each block index; the first one's finds the state.
        enable_prefix_caching: Whether checkpoints are made at all.
        num_parts: Blocks' sizes that a state takes in tiers; 0: they keep none.
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
        num_parts: int = 0,
    ) -> None:
        self.num_slots, self.num_parts = num_slots, num_parts
        self.pool = BlockPool(num_slots)
        self._size = block_size
        self._spacing = spacing
        self._num_groups = num_groups
        self._caches_prefixes = enable_prefix_caching
        self._requests: dict[str, _States] = {}
        self._loads: dict[str, _StateLoad] = {}
        self._watchers: list[CheckpointWatcher] = []

    def watch(self, watcher: CheckpointWatcher) -> None:
        self._watchers.append(watcher)
        self.pool.on_evict = self._on_evict

    def shorten(
        self, keys: list[BlockKey], needs: PrefixNeeds, has: Callable[[BlockKey], bool]
    ) -> list[BlockKey]:
        find = self.pool.find
        length = needs.longest_to_a_state(keys, has, lambda key: find(key) is not None)
        return keys[: length * self._num_groups]

    def has_room(self, request: Request, num_cached: int) -> bool:
        slot = self._find(request, num_cached)
        num_own = 1 + request.params.is_constrained
        return self.pool.num_free >= num_own + (slot != NO_SLOT and self.pool.is_free(slot))

    def admit(self, request: Request, num_cached: int) -> None:
        assert request.request_id not in self._requests, "a waiting request holds no slot"
        start = self._find(request, num_cached)
        assert (start == NO_SLOT) == (num_cached == 0), "a prefix ends at a checkpoint"
        if start != NO_SLOT:
            self.pool.hold(start)
        states = _States(self.pool.allocate(), start)
        if request.params.is_constrained:
            states.spare = self.pool.allocate()
        self._requests[request.request_id] = states

    def max_drafts(self, request: Request) -> int:
        return max(0, self.pool.num_free - 1)  # and the copy that the share goes on from

    def plan(self, request: Request, num_tokens: int, num_drafts: int = 0) -> StateChange | None:
        states = self._requests[request.request_id]
        is_new, states.is_new = states.is_new, False
        moved, states.moved = states.moved, False
        if not is_new and states.start != NO_SLOT:  # its first step has copied that
            self.pool.release(states.start)
            states.start = NO_SLOT
        start = states.start if is_new else None
        first = request.num_computed_tokens
        num_known = num_tokens - num_drafts
        end = first + num_known
        copies: list[tuple[int, int]] = []
        draws = end >= request.num_tokens
        if num_drafts or (draws and request.params.is_constrained):
            before = NO_SLOT
            if not is_new:
                before = start = states.live
                states.live, states.spare = states.spare, NO_SLOT
                if states.live == NO_SLOT:
                    states.live = self.pool.allocate()
            states.trial = _Trial(
                first, end, before, [self.pool.allocate() for _ in range(num_drafts)]
            )
            copies = [(num_known + i, slot) for i, slot in enumerate(states.trial.drafts)]
        for num_blocks in self._checkpoints(request, first, end + num_drafts):
            if not self.pool.num_free:
                break
            slot = self.pool.allocate()
            states.pending.append((num_blocks, slot))
            copies.append((num_blocks * self._size - first, slot))
        if start is None and not (moved or copies):
            return None
        return StateChange(states.live, start, sorted(copies))

    def commit(self, request: Request, start: int) -> None:
        states, keys = self._requests[request.request_id], request.block_hashes
        trial = states.trial
        if trial is not None and trial.begin > start:
            trial = None  # it is the next step's
        if trial is not None:
            self._end_trial(states, trial, request)
        of_next = list[tuple[int, int]]()
        for num_blocks, slot in states.pending:
            entry = (num_blocks - 1) * self._num_groups
            is_computed = num_blocks * self._size <= request.num_computed_tokens
            if not is_computed and trial is None:  # its step runs: drafts alone are taken back
                of_next.append((num_blocks, slot))
                continue
            if is_computed and entry < len(keys) and self.pool.index(slot, keys[entry]):
                self._drop_latest(states)
                lasts = self._is_kept(request, num_blocks)
                self._tell(keys[entry], slot, lasts=lasts)
                if not lasts:
                    states.latest = slot
                    continue
            self.pool.release(slot)
        states.pending = of_next

    def free(self, request: Request, *, discard: bool = False) -> None:
        states = self._requests.pop(request.request_id, None)
        if states is None:
            return
        if discard:
            self._discard(request.block_hashes)
        elif states.latest != NO_SLOT:
            self._keep(states.latest)
        for slot in states.held():
            self.pool.release(slot)
        if states.start != NO_SLOT:
            self.pool.release(states.start)

    def latest(self, request: Request, keys: Sequence[BlockKey]) -> tuple[int, int] | None:
        ends = keys[:: self._num_groups]
        for length in range(len(ends), 0, -1):
            if (slot := self.pool.find(ends[length - 1])) is not None:
                return length, slot
            if length * self._size == request.num_computed_tokens:
                own = self._requests[request.request_id].before_step()
                if own != NO_SLOT:
                    return length, own
        return None

    def can_load(self, request: Request, key: BlockKey) -> bool:
        slot, num_own = self.pool.find(key), 1 + request.params.is_constrained
        return self.pool.num_free >= num_own + (slot is None or self.pool.is_free(slot))

    def begin_load(self, request_id: str, key: BlockKey) -> int | None:
        slot = self.pool.find(key)
        if is_here := slot is not None:
            self.pool.hold(slot)
        else:
            slot = self.pool.allocate()
        self._loads[request_id] = _StateLoad(None if is_here else key, slot)
        return None if is_here else slot

    def end_load(self, request_id: str, *, loaded: bool) -> None:
        load = self._loads.pop(request_id, None)
        if load is None:
            return
        if loaded and load.key is not None and self.pool.index(load.slot, load.key):
            self._tell(load.key, load.slot, lasts=True)
        self.pool.release(load.slot)

    def clear(self) -> None:
        self._loads = {name: load._replace(key=None) for name, load in self._loads.items()}
        self.pool.clear()

    def _find(self, request: Request, num_tokens: int) -> int:
        """The slot of a request's checkpoint after ``num_tokens``; ``NO_SLOT``: none."""
        if not num_tokens:
            return NO_SLOT
        key = request.block_hashes[(num_tokens // self._size - 1) * self._num_groups]
        slot = self.pool.find(key)
        return NO_SLOT if slot is None else slot

    def _checkpoints(self, request: Request, first: int, end: int) -> list[int]:
        """After how many blocks a step over tokens ``first`` to ``end - 1`` makes checkpoints."""
        if not self._caches_prefixes:
            return []
        return [
            num_blocks
            for num_blocks in range(first // self._size + 1, end // self._size + 1)
            if num_blocks * self._size >= request.num_prompt_tokens
            or self._is_kept(request, num_blocks)
        ]

    def _is_kept(self, request: Request, num_blocks: int) -> bool:
        """Whether the checkpoint outlives the next one: only those within an answer do not.

        The last token of a prompt is computed in any case, so no prefix of it ends after it. Where
        it goes another way than one before it (blocks were there, no state), others may as well.
        """
        prompt_end, hit = (request.num_prompt_tokens - 1) // self._size, request.prefix_hit
        return (
            num_blocks % self._spacing == 0
            or num_blocks == prompt_end
            or (hit is not None and num_blocks * self._size == hit.block_tokens)
        )

    def _end_trial(self, states: _States, trial: _Trial, request: Request) -> None:
        """Take the state after what was accepted, or that before the share if nothing counts."""
        computed, unused = request.num_computed_tokens, list(trial.drafts)
        states.trial = None
        if computed == trial.begin:
            if trial.before == NO_SLOT:
                states.is_new = True
            else:
                unused.append(states.live)
                states.live, states.moved = trial.before, True
        else:
            if (accepted := computed - trial.end) < len(unused):
                unused.append(states.live)
                states.live, states.moved = unused.pop(accepted), True
            if trial.before != NO_SLOT:
                unused.append(trial.before)
        if request.params.is_constrained and states.spare == NO_SLOT:
            states.spare = unused.pop()
        for slot in unused:
            self.pool.release(slot)

    def _drop_latest(self, states: _States) -> None:
        slot, states.latest = states.latest, NO_SLOT
        if slot != NO_SLOT:
            key = self.pool.content(slot)
            if self.pool.is_shared(slot) or key in self.pool.pinned:
                self._keep(slot)
            elif key is not None:
                self._lose(key, slot, Loss.REPLACED)
                self.pool.unindex(slot)
            self.pool.release(slot)

    def _keep(self, slot: int) -> None:
        """Nothing takes the place of a checkpoint within an answer any more."""
        if (key := self.pool.content(slot)) is not None:
            self._tell(key, slot, lasts=True)

    def _discard(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            slot = self.pool.find(key)
            if slot is not None:
                self._lose(key, slot, Loss.WRONG)
                self.pool.hold(slot)
                self.pool.unindex(slot)
                self.pool.release(slot)

    def _on_evict(self, slot: int, key: BlockKey) -> None:
        self._lose(key, slot, Loss.EVICTED)

    def _tell(self, key: BlockKey, slot: int, *, lasts: bool) -> None:
        for watcher in self._watchers:
            watcher.on_checkpoint(key, slot, lasts=lasts)

    def _lose(self, key: BlockKey, slot: int, loss: Loss) -> None:
        for watcher in self._watchers:
            watcher.on_checkpoint_lost(key, slot, loss)

    def check_integrity(self) -> None:
        holders = Counter(load.slot for load in self._loads.values())
        for request_id, states in self._requests.items():
            own = states.held()
            assert len(set(own)) == len(own), f"{request_id} holds a slot twice"
            holders.update(own)
            if states.start != NO_SLOT:
                holders[states.start] += 1
        self.pool.check_integrity(holders)
