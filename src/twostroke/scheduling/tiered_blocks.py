"""What moves between the KV cache and the tiers below it, and when: the scheduler's side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from twostroke.core.kv_groups import is_state_key, state_key
from twostroke.core.kv_tier_config import BlockTransfer, TierChange
from twostroke.core.network.address import is_address
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import BlockKey, Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.block_table import Prefix
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.states import Loss
from twostroke.kv_cache.tier_directory import TierDirectory
from twostroke.kv_cache.tiered_prefix import (
    Loadable,
    Savable,
    find_loadable,
    find_savable,
    state_parts,
)
from twostroke.observability.events import TierStats
from twostroke.scheduling.awaited_prompts import (
    AwaitedPrompt,
    AwaitedPrompts,
    room_to_spare,
    ticket_of,
)
from twostroke.timing.transfer_times import TransferTimes

MAX_LOADS = 3  # a request whose loads keep failing, or whose blocks are lost again, computes
# Tiers of other engines that offers may bring: each has a connection, a thread and metrics.
MAX_PEERS = 64


@dataclass(slots=True)
class TierCounts:
    """What has been moved since the start, in blocks by tier, with parts of states.

    Attributes:
        loaded_parts: Those of ``loaded`` that are parts of states.
        seconds_saved: What computing the loaded tokens would have taken longer than loading them.
    """

    saved: Counter[str] = field(default_factory=Counter)
    loaded: Counter[str] = field(default_factory=Counter)
    loaded_parts: Counter[str] = field(default_factory=Counter)
    failed_loads: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    seconds_saved: float = 0.0


class _Load(NamedTuple):
    """Blocks by tier, parts of states, and how many tokens need not be computed with them."""

    num_blocks: Counter[str]
    num_parts: Counter[str]
    num_tokens: int


def _transfer(request_id: str, tier: str, pairs: Sequence[tuple[BlockKey, int]]) -> BlockTransfer:
    return BlockTransfer(request_id, [block for _, block in pairs], [key for key, _ in pairs], tier)


def _by_kind(tier: str, pairs: Sequence[tuple[BlockKey, int]]) -> list[BlockTransfer]:
    """What is saved in a tier: blocks, then parts of states, each kind if there is any."""
    blocks = [pair for pair in pairs if not is_state_key(pair[0])]
    parts = [pair for pair in pairs if is_state_key(pair[0])]
    return [_transfer("", tier, moved) for moved in (blocks, parts) if moved]


class TieredBlocks:
    """Plans saves, loads and drops, and remembers what is where. Without tiers it plans nothing.

    A load fills blocks of its own; then the prefix cache finds them, and the request that waited
    for them is admitted with a cached prefix like any other. So nothing waits for a load but the
    request that it is for, and blocks that were loaded may be evicted before its turn.

    Args:
        tiers: In the order in which they are asked.
        always_load_swapped: Load what was swapped even if computing it were faster.

    Attributes:
        awaited: Prompts whose blocks are loaded before their requests are here.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        tiers: Sequence[TierInfo] = (),
        *,
        always_load_swapped: bool = False,
    ) -> None:
        self.speeds = TransferTimes()
        self.counts = TierCounts()
        self.directory = TierDirectory(tiers)
        self._kv = kv
        self._always_load_swapped = always_load_swapped
        self._saves: dict[str, dict[BlockKey, int]] = {tier.name: {} for tier in tiers}
        self._drops: dict[str, list[BlockKey]] = {}
        self._swapped: dict[str, list[BlockKey]] = {}  # by request
        self._num_swapped = 0  # blocks
        self._num_loads: dict[str, int] = {}  # begun for each request that waits
        self._loads_of: dict[str, _Load] = {}  # those under way
        self.swap_tier = next((tier for tier in tiers if tier.for_swap), None)
        self._any_peer = next((tier for tier in tiers if tier.by_address), None)
        self._kept = [tier for tier in tiers if not (tier.for_swap or tier.loads_only)]
        self._offered: dict[str, TierChange] = {}  # by request: what is found for its sake
        self.awaited = AwaitedPrompts()
        self._joined: dict[str, list[str]] = {}  # by ticket: requests that wait for its load
        if tiers:
            kv.watch(self)
            kv.states.watch(self)

    def has_work(self) -> bool:
        """Whether a plan is needed although no request may be left: blocks are on their way."""
        moves = bool(len(self._kv.loads) or self._drops or any(self._saves.values()))
        return moves or self.awaited.is_due

    def stats(self) -> TierStats | None:
        if not (tiers := self.directory.tiers):
            return None
        return TierStats(
            blocks={name: self.directory.num_blocks(name) for name in tiers},
            block_bytes=max(tier.block_bytes for tier in tiers.values()),
            block_size=self._kv.block_size,
            saved_blocks=dict(self.counts.saved),
            loaded_blocks=dict(self.counts.loaded),
            loaded_state_parts=dict(self.counts.loaded_parts),
            seconds_saved=self.counts.seconds_saved,
            swapped_out=self.counts.swapped_out,
            swapped_in=self.counts.swapped_in,
            failed_loads=self.counts.failed_loads,
        )

    # ---- what the prefix cache gets and loses (CacheWatcher, CheckpointWatcher) ------------------

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        for tier in self._kept:
            if tier.saves_filled:
                for key, block in zip(request.block_hashes[first : first + len(blocks)], blocks):
                    self._save(tier.name, key, block)

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        if is_wrong:
            self._forget(key)
            for part, _ in state_parts(self._kv, key, 0):
                self._forget(part)  # of a checkpoint that the pool may have lost already
            return
        for tier in self._kept:
            self._save(tier.name, key, block)

    def on_checkpoint(self, key: BlockKey, slot: int, *, lasts: bool) -> None:
        """One that gives way to the next may be many blocks' bytes: that is not written."""
        for tier in self._kept if lasts else ():
            if tier.saves_filled:
                for part, place in state_parts(self._kv, key, slot):
                    self._save(tier.name, part, place)

    def on_checkpoint_lost(self, key: BlockKey, slot: int, loss: Loss) -> None:
        for part, place in state_parts(self._kv, key, slot):
            if loss is Loss.WRONG:
                self._forget(part)
            elif loss is Loss.EVICTED:
                for tier in self._kept:
                    self._save(tier.name, part, place)

    def on_found(self, request: Request, num_blocks: int) -> None:
        """Nothing moves."""

    def on_cleared(self) -> None:
        for tier, saves in self._saves.items():
            saves.clear()
            self._drop({tier: self.directory.keys(tier)})

    def _forget(self, key: BlockKey) -> None:
        for saves in self._saves.values():
            saves.pop(key, None)
        self._drop({tier: [key] for tier in self.directory.homes(key)})

    def _save(self, tier: str, key: BlockKey, block: int) -> None:
        if not self.directory.has(tier, key):
            self._saves[tier].setdefault(key, block)

    def _drop(self, keys: Mapping[str, list[BlockKey]]) -> None:
        for tier, dropped in keys.items():
            if dropped:
                self.directory.forget(tier, dropped)
                self._drops.setdefault(tier, []).extend(dropped)

    # ---- loads -----------------------------------------------------------------------------------

    def begin_load(self, request: Request, prefix: Prefix, plan: StepPlan) -> bool:
        """Begin to load what tiers have of a waiting request's tokens, if that is faster.

        There is room for all its known tokens. Afterwards it waits, without blocks of its own,
        until ``update`` names it.
        """
        request_id = request.request_id
        if not (prefix.looked_up and self.directory.tiers) or request_id in self._kv.loads:
            return False
        if (ticket := ticket_of(request.spec.parent_id)) in self._kv.loads:
            self._joined.setdefault(ticket, []).append(request_id)
            return True
        if request.offer is not None:
            self._expect(request, request.offer)
        loadable = find_loadable(self._kv, request, prefix, self._is_in_tier)
        if not loadable.num_tokens or self._num_loads.get(request_id, 0) >= MAX_LOADS:
            return False
        is_state_here = self._kv.states.pool.find(loadable.state or b"") is not None
        if self.directory.states_alone and is_state_here:
            return False  # a block was forgotten that held nothing: there is nothing to load
        if not self._pays(request_id, loadable):
            return False
        self._begin(request, loadable, plan)
        self._num_loads[request_id] = self._num_loads.get(request_id, 0) + 1
        return True

    def _begin(self, request: Request, loadable: Loadable, plan: StepPlan) -> None:
        request_id, keys = request.request_id, loadable.keys
        block_ids = self._kv.loads.begin(request, keys, loadable.kept_blocks)
        blocks = [] if self.directory.states_alone else list(zip(keys, block_ids))
        num_blocks = Counter(self._home(key) for key, _ in blocks)
        parts: list[tuple[BlockKey, int]] = []
        if loadable.state is not None:
            slot = self._kv.states.begin_load(request_id, loadable.state)
            if slot is not None:
                parts = state_parts(self._kv, loadable.state, slot)
        for pairs in (blocks, parts):
            plan.block_loads += self._transfers(request_id, pairs)
        num_parts = Counter(self._home(key) for key, _ in parts)
        self._loads_of[request_id] = _Load(num_blocks, num_parts, loadable.num_tokens)

    def _load_ahead(
        self, prompt: AwaitedPrompt, plan: StepPlan, requests: Mapping[str, Request]
    ) -> None:
        """Load what is there of a prompt that another engine computes, if there is room to spare.

        Whether computing it here were faster is not asked: nothing does that meanwhile.
        """
        request, tier, kv = prompt.request, prompt.offer.tier, self._kv
        if kv.states.exist or not self._has_peer(tier):
            return
        count = prompt.offer.num_tokens // kv.block_size * kv.groups.count
        keys = [key for key in kv.candidate_keys(request)[:count] if not self._is_in_tier(key)]
        self.directory.take_in([TierChange(tier, stored=keys)])
        loadable = find_loadable(kv, request, kv.find_prefix(request), self._is_in_tier)
        needed = len(loadable.keys) + sum(map(kv.pool.is_free, loadable.kept_blocks))
        if loadable.keys and needed <= room_to_spare(kv, requests.values()):
            self._begin(request, loadable, plan)
        self.directory.take_in([TierChange(tier, removed=keys)])

    def _expect(self, request: Request, offer: KVOffer) -> None:
        """Look in a tier for what another engine has computed of a request, until it is admitted.

        What is not there fails its load, and is computed.
        """
        request.offer = None
        if self._has_peer(offer.tier):
            count = offer.num_tokens // self._kv.block_size * self._kv.groups.count
            keys = self._kv.candidate_keys(request)[:count]
            self.directory.take_in([TierChange(offer.tier, stored=keys)])
            self._offered[request.request_id] = TierChange(offer.tier, removed=keys)

    def _has_peer(self, name: str) -> bool:
        """Whether it fetches there, perhaps from now on."""
        tiers = self.directory.tiers
        is_new = name not in tiers and len(tiers) <= MAX_PEERS
        if is_new and self._any_peer is not None and is_address(name):
            self.directory.add(replace(self._any_peer, name=name, by_address=False))
        return name in tiers and tiers[name].loads_only

    def _pays(self, request_id: str, loadable: Loadable) -> bool:
        """Whether loading is faster than computing, as far as is known, or what was swapped."""
        if self._always_load_swapped and request_id in self._swapped:
            return True
        keys, states = loadable.keys, self._kv.states
        if self.directory.states_alone:
            keys = []
        if loadable.state is not None and states.pool.find(loadable.state) is None:
            parts = range(states.num_parts)
            keys = [*keys, *(state_key(loadable.state, part) for part in parts)]
        return self.speeds.load_pays(Counter(map(self._home, keys)), loadable.num_tokens)

    def _transfers(
        self, request_id: str, pairs: Sequence[tuple[BlockKey, int]]
    ) -> list[BlockTransfer]:
        """What one request loads, as one transfer for each tier."""
        by_tier: dict[str, list[tuple[BlockKey, int]]] = {}
        for key, block in pairs:
            by_tier.setdefault(self._home(key), []).append((key, block))
        return [_transfer(request_id, tier, moved) for tier, moved in by_tier.items()]

    def _home(self, key: BlockKey) -> str:
        return self.directory.find(key) or ""

    def _is_in_tier(self, key: BlockKey) -> bool:
        return self.directory.find(key) is not None

    # ---- swap ------------------------------------------------------------------------------------

    def swap_out(self, request: Request, plan: StepPlan) -> bool:
        """Save a running request's full blocks, as far as no tier has them; whether there is room.

        The last block, if it is not full, is computed again; with recurrent layers, what comes
        after the last checkpoint, which is saved with the blocks before it.
        """
        savable = find_savable(self._kv, request)
        if self.swap_tier is None or savable is None:
            return False
        missing = self.missing(savable)
        if self._num_swapped + len(missing) > self.swap_tier.num_blocks:
            return False
        plan.block_saves += _by_kind(self.swap_tier.name, missing)
        if missing:
            self._swapped.setdefault(request.request_id, []).extend(key for key, _ in missing)
            self._num_swapped += len(missing)
        self.counts.swapped_out += 1
        return True

    def missing(self, savable: Savable) -> list[tuple[BlockKey, int]]:
        """What no tier has of it."""
        return [(key, block) for key, block in savable.blocks if not self._is_in_tier(key)]

    def _release_swapped(self, plan: StepPlan, requests: Collection[str]) -> None:
        """Let swap space forget requests that run again or have ended."""
        for request_id in list(self._swapped):
            if request_id in plan.new_requests or request_id not in requests:
                keys = self._swapped.pop(request_id)
                self._num_swapped -= len(keys)
                assert self.swap_tier is not None
                self._drop({self.swap_tier.name: keys})
                self.counts.swapped_in += request_id in plan.new_requests

    # ---- the step --------------------------------------------------------------------------------

    def complete(self, plan: StepPlan, requests: Mapping[str, Request]) -> None:
        """Put saves, drops and loads ahead into the plan, at the end of ``schedule``.

        Args:
            requests: All that have not ended, by id.
        """
        for prompt in self.awaited.take_due(self._kv.loads.__contains__):
            self._load_ahead(prompt, plan, requests)
        if self._swapped:
            self._release_swapped(plan, requests)
        for tier, saves in self._saves.items():
            if saves:
                plan.block_saves += _by_kind(tier, list(saves.items()))
                self._saves[tier] = {}
        for tier, keys in self._drops.items():
            plan.block_drops.append(TierChange(tier, removed=keys))
        self._drops = {}

    def update(self, plan: StepPlan, result: StepResult, requests: Collection[str]) -> list[str]:
        """Take in what became of transfers. Returns the requests that wait for none any more.

        Args:
            requests: See ``complete``.
        """
        self.speeds.observe_pass(plan, result)
        self.directory.take_in(result.tier_changes)
        for save in plan.block_saves:
            self.counts.saved[save.tier] += len(save.keys)
        for change in result.tier_changes:
            self.counts.saved[change.tier] -= len(change.refused)
        for request_id in plan.new_requests:
            self._num_loads.pop(request_id, None)
        for request_id in result.loaded:
            self._end_load(request_id, loaded=True)
        for request_id in result.failed_loads:
            self._end_load(request_id, loaded=False)
            self.awaited.note_failure(request_id)
        for request_id in list(self._offered):
            if request_id in plan.new_requests or request_id not in requests:
                self.directory.take_in([self._offered.pop(request_id)])
        self._num_loads = {r: n for r, n in self._num_loads.items() if r in requests}
        ended = [*result.loaded, *result.failed_loads]
        return ended + [joined for each in ended for joined in self._joined.pop(each, ())]

    def _end_load(self, request_id: str, *, loaded: bool) -> None:
        load = self._loads_of.pop(request_id, None)
        if load is None:
            return
        self._kv.loads.end(request_id, loaded=loaded)
        if not loaded:
            self.counts.failed_loads += 1
            return
        self.counts.loaded += load.num_blocks + load.num_parts
        self.counts.loaded_parts += load.num_parts
        if (computing := self.speeds.computing(load.num_tokens)) is not None:
            saved = computing - self.speeds.loading(load.num_blocks + load.num_parts)
            self.counts.seconds_saved += max(0.0, saved)
