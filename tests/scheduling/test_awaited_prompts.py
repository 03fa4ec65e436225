"""Protects: blocks that come while their prompt is still computed elsewhere change no token.

Two engines, each a scheduler and a fake executor that fails when a request reads a slot that holds
anything else than its own tokens' keys and values. The one computes prompts in chunks, and offers
blocks; the other loads what is there of them, and goes on where the one has stopped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import BLOCK, Harness, expected_output, make_request
from tests.specs import respecify
from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.kv_tier_config import TierChange
from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import BlockKey, FinishReason, Request
from twostroke.kv_cache.connector import ArrivedBlock, KVConnector, TierInfo
from twostroke.kv_tiers.change_log import ChangeLog
from twostroke.kv_tiers.memory_tier import MemoryTier
from twostroke.scheduling.awaited_prompts import MAX_AWAITED, MAX_FAILED, AwaitedPrompts, ticket_of

PEER = "peer0"


class Giver:
    """A scheduler whose blocks are offered as soon as they are full."""

    def __init__(self, chunk: int, num_offered: int = 100, groups: KVGroups = ONE_GROUP) -> None:
        self.offered: MemoryTier | None = None
        self._num_offered = num_offered
        config = SchedulerConfig(max_num_batched_tokens=64, max_prefill_chunk=chunk)
        self.harness = Harness(config, 64, open_tiers=self._open, groups=groups)

    def _open(self, block_bytes: int, _: threading.Event) -> dict[str, KVConnector]:
        self.offered = MemoryTier(
            TierInfo(
                name="offered",
                num_blocks=self._num_offered,
                block_bytes=block_bytes,
                saves_filled=True,
            )
        )
        return {"offered": self.offered}


class Taken:
    """Implements ``KVConnector``: a giver's blocks, some of which come later, or never."""

    def __init__(self, info: TierInfo, giver: Giver, random: Random, losses: float) -> None:
        self._info, self._giver = info, giver
        self._random, self.losses = random, losses
        self._wanted: list[tuple[str, BlockKey]] = []
        self._log = ChangeLog(info.name)
        self.num_given = 0
        self._num_tries: Counter[BlockKey] = Counter()

    @property
    def info(self) -> TierInfo:
        return self._info

    def save(self, key: BlockKey, block: memoryview) -> bool:
        return False

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        self._wanted += [(ticket, key) for key in keys]

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        count = self._random.randrange(0, min(limit, len(self._wanted)) + 1)
        blocks: list[ArrivedBlock] = []
        while len(blocks) < count and not self._waits(self._wanted[0][1]):
            blocks.append(self._fetch(*self._wanted.pop(0)))
        return blocks

    def _waits(self, key: BlockKey) -> bool:
        """Give a block a moment to be saved: that is done when the giver's next step begins."""
        assert self._giver.offered is not None
        if self._giver.offered.has(key) or not self._giver.harness.scheduler.has_work():
            return False
        self._num_tries[key] += 1
        return self._num_tries[key] % 3 != 0

    def _fetch(self, ticket: str, key: BlockKey) -> ArrivedBlock:
        assert self._giver.offered is not None
        is_lost = self._random.random() < self.losses
        data = None if is_lost else self._giver.offered.copy_of(key)
        if data is None:
            self._log.remove(key)
        self.num_given += data is not None
        return ArrivedBlock(ticket, key, data)

    def drop(self, keys: Iterable[BlockKey]) -> None:
        """They are the giver's."""

    def changes(self) -> TierChange:
        return self._log.take()

    def close(self) -> None:
        """Nothing is open."""


class Taker:
    """A scheduler that writes answers to what a giver has computed."""

    def __init__(
        self,
        giver: Giver,
        random: Random,
        losses: float = 0.0,
        num_blocks: int = 64,
        groups: KVGroups = ONE_GROUP,
    ) -> None:
        self._giver, self._random, self._losses = giver, random, losses
        self.taken: Taken | None = None
        config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
        self.harness = Harness(config, num_blocks, open_tiers=self._open, groups=groups)
        self.awaited = self.harness.tiered.awaited

    def _open(self, block_bytes: int, _: threading.Event) -> dict[str, KVConnector]:
        info = TierInfo(name=PEER, num_blocks=0, block_bytes=block_bytes, loads_only=True)
        self.taken = Taken(info, self._giver, self._random, self._losses)
        return {PEER: self.taken}

    @property
    def num_given(self) -> int:
        assert self.taken is not None
        return self.taken.num_given

    def hear(self, request: Request, *, first: bool) -> None:
        """So much of a request is computed."""
        stand_in = None
        if first:
            name = request.request_id
            stand_in = make_request(ticket_of(name), request.token_ids[: request.num_prompt_tokens])
            respecify(stand_in, parent_id=name, cache_salt=request.spec.cache_salt)
        offer = KVOffer(PEER, request.num_computed_tokens)
        self.awaited.note(request.request_id, stand_in, offer)

    def go_on(self, request: Request, *, offered: bool = True) -> Request:
        """Take a request from where it is."""
        moved = Request(request.spec)
        moved.token_ids = list(request.token_ids)
        moved.num_preemptions = int(request.num_output_tokens > 0)
        if offered:
            moved.offer = KVOffer(PEER, request.num_prompt_tokens)
        self.awaited.forget(request.request_id)
        self.harness.scheduler.add(moved)
        return moved

    def settle(self) -> None:
        """Run all to their ends."""
        self.harness.run()
        assert not self.harness.kv.loads and not self.harness.tiered.has_work()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    chunk=st.sampled_from([BLOCK - 1, BLOCK, 2 * BLOCK + 1, 50]),
    num_blocks=st.sampled_from([14, 20, 64]),
    num_offered=st.sampled_from([3, 100]),
    losses=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    window=st.sampled_from([None, 2 * BLOCK]),
)
def test_no_token_changes_whatever_comes_ahead(
    seed: int, chunk: int, num_blocks: int, num_offered: int, losses: float, window: int | None
) -> None:
    """Random prompts, some of one text, moves, aborts and deaths, over scarce blocks and losses."""
    random = Random(seed)
    groups = ONE_GROUP if window is None else KVGroups((None, window))
    giver = Giver(chunk, num_offered, groups)
    taker = Taker(giver, random, losses, num_blocks * groups.count, groups)
    there: dict[str, Request] = {}
    heard: set[str] = set()
    moved: list[tuple[Request, list[int]]] = []
    shared = [random.randrange(50) for _ in range(6 * BLOCK)]
    dies_at = random.choice([None, random.randrange(20)])
    for number in range(40):
        if number < 6:
            prompt = shared[: random.choice([0, 3, 6]) * BLOCK]
            prompt = prompt + [random.randrange(50) for _ in range(random.randrange(1, 3 * BLOCK))]
            if random.random() < 0.7:
                request = make_request(str(number), prompt, random.randrange(2, 9))
                respecify(request, cache_salt=random.choice(["", "salt"]))
                there[request.request_id] = request
                giver.harness.scheduler.add(request)
            else:
                own = make_request(f"own{number}", prompt, random.randrange(1, 9))
                moved.append((own, prompt))
                taker.harness.scheduler.add(own)
        if number == dies_at:  # with all that it has: what it was computing begins anew
            assert taker.taken is not None
            taker.taken.losses = 1.0
            for request in there.values():
                prompt = request.token_ids[: request.num_prompt_tokens]
                request.token_ids = list(prompt)
                moved.append((taker.go_on(request, offered=False), prompt))
            there.clear()
        if there and giver.harness.scheduler.has_work():
            giver.harness.step()
        for name, request in list(there.items()):
            if request.num_output_tokens:
                prompt = request.token_ids[: request.num_prompt_tokens]
                giver.harness.scheduler.finish(name, FinishReason.ABORT, 0.0)
                moved.append((taker.go_on(request), prompt))
                del there[name]
            elif random.random() < 0.03:
                giver.harness.scheduler.finish(name, FinishReason.ABORT, 0.0)
                taker.awaited.forget(name)
                del there[name]
            elif request.num_computed_tokens and random.random() < 0.8:
                taker.hear(request, first=name not in heard)
                heard.add(name)
        if taker.harness.scheduler.has_work() and random.random() < 0.8:
            step(taker)
    giver.harness.run()
    taker.awaited.clear()
    taker.settle()
    for request, prompt in moved:
        assert request.output_token_ids == expected_output(request, prompt)


def step(taker: Taker) -> None:
    """One step, which may be for what is heard alone."""
    harness = taker.harness
    harness.last = harness.scheduler.schedule(harness.now)
    result = harness.executor.execute(harness.last)
    harness.now += 1.0
    harness.scheduler.update(harness.last, result, harness.now)
    harness.kv.check_integrity()


def compute(giver: Giver, request: Request) -> None:
    """Two steps' worth of it."""
    giver.harness.scheduler.add(request)
    giver.harness.step()
    giver.harness.step()


def test_after_the_last_chunk_only_its_blocks_are_missing() -> None:
    giver = Giver(chunk=4 * BLOCK)
    taker = Taker(giver, Random(0))
    request, prompt = make_request("a", list(range(14 * BLOCK)), 4), list(range(14 * BLOCK))
    giver.harness.scheduler.add(request)
    giver.harness.step()
    while not request.num_output_tokens:
        taker.hear(request, first=request.num_computed_tokens == 4 * BLOCK)
        heard = request.num_computed_tokens // BLOCK
        giver.harness.step()  # which saves what the one before has filled
        while taker.harness.scheduler.has_work():
            step(taker)
        assert taker.num_given == heard
    assert taker.num_given == 12
    giver.harness.step()
    giver.harness.scheduler.finish("a", FinishReason.ABORT, 0.0)
    moved = taker.go_on(request)
    taker.settle()
    assert moved.output_token_ids == expected_output(moved, prompt)
    assert taker.num_given == 14 and taker.harness.tiered.counts.loaded[PEER] == 14


def test_one_that_never_comes_holds_no_block() -> None:
    giver = Giver(chunk=2 * BLOCK)
    taker = Taker(giver, Random(0))
    request = make_request("a", list(range(8 * BLOCK)), 4)
    compute(giver, request)
    taker.hear(request, first=True)
    while taker.harness.scheduler.has_work():
        step(taker)
    assert taker.num_given > 0
    assert taker.harness.kv.pool.num_free == taker.harness.num_blocks
    taker.awaited.forget("a")
    taker.hear(request, first=False)
    assert not taker.harness.scheduler.has_work()


def test_what_waits_here_goes_first() -> None:
    """Blocks ahead are fetched into room that no request needs."""
    giver = Giver(chunk=2 * BLOCK)
    taker = Taker(giver, Random(0), num_blocks=8)
    request = make_request("a", list(range(6 * BLOCK)), 4)
    compute(giver, request)
    for name in "bc":
        taker.harness.scheduler.add(make_request(name, [ord(name)] * (5 * BLOCK), 4))
    step(taker)
    taker.hear(request, first=True)
    while taker.harness.scheduler.requests:
        step(taker)
        assert not taker.harness.kv.loads
    assert taker.num_given == 0


def test_the_oldest_are_forgotten() -> None:
    awaited = AwaitedPrompts()
    for number in range(MAX_AWAITED + 2):
        awaited.note(str(number), make_request(ticket_of(str(number)), [1, 2]), KVOffer(PEER, 4))
    due = [each.request.request_id for each in awaited.take_due(lambda ticket: False)]
    assert due == [ticket_of(str(number)) for number in range(2, MAX_AWAITED + 2)]
    assert not awaited.is_due
    awaited.note("0", None, KVOffer(PEER, 8))
    assert not awaited.is_due, "it was forgotten"
    awaited.note("5", None, KVOffer(PEER, 4))
    assert not awaited.is_due, "nothing more is there"
    awaited.note("5", None, KVOffer(PEER, 8))
    assert awaited.take_due(lambda ticket: ticket == ticket_of("5")) == [] and awaited.is_due
    for _ in range(MAX_FAILED):
        assert awaited.is_due
        awaited.take_due(lambda ticket: False)
        awaited.note_failure("5")
        awaited.note_failure(ticket_of("5"))
    assert not awaited.is_due
