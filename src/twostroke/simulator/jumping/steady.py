"""Requests that only decode, kept by what changes for them and not by what they are.

Every step gives each of them one token. So they advance together: it is enough to count steps, and
to look at a request when it fills a block and begins the next one, and when it ends. What such
steps cost here does not grow with the number of requests. Whoever lacks more than one token stays
with the scheduler, which plans for those as ever; to it the others are so many tokens of the step's
budget.

Requests, block tables and pool are left exactly as ``schedule`` and ``update`` would have left them
with everybody in the plan: blocks are taken, indexed and freed in the same order. The simulator
jumps with it; ``tests/scheduling/test_steady.py`` compares both ways.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate

from twostroke.core.request import BlockKey, FinishReason, Request
from twostroke.kv_cache.manager import NO_PREFIX, KVCacheManager
from twostroke.scheduling.policies.policies import Rank
from twostroke.scheduling.scheduler import Scheduler

# How many steps will have been counted at its end, rank (unique), tokens computed less steps
# counted, which never changes, and the request. Its phase is how many steps have been counted,
# modulo a block, when it fills one.
Member = tuple[int, Rank, int, Request]


class Steady:
    """The members: requests that a scheduler has lent, each of which draws ``token`` in every step.

    A step is ``begin``, then the scheduler's ``schedule`` and ``update`` for everybody else, with
    ``end`` before the ``update``. ``run`` takes several in one go. ``prepare`` comes before either.
    Nobody is aborted meanwhile, unless ``release`` has given the members back.

    Attributes:
        request_ids: Of the members.
        joined: Of those who were not yet members before the last ``prepare``; ``left``: of those
            that it gave back.
    """

    def __init__(self, scheduler: Scheduler, token: int) -> None:
        self.request_ids: set[str] = set()
        self.joined: set[str] = set()
        self.left: set[str] = set()
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._token = token
        self._never = scheduler.config.policy == "fair"
        self._budget = scheduler.config.max_num_batched_tokens
        self._steps = 0
        self._computed = 0  # the sum of what members have computed, less the steps of each
        self._size = scheduler.kv.block_size
        self._members: list[Member] = []  # a heap
        # In order of phase and rank: ranks, block tables, and what their next blocks will hold.
        self._ranks: list[Rank] = []
        self._tables: list[list[int]] = []
        self._contents: list[Iterator[BlockKey]] = []
        scheduler.kv.before_index = self._catch_up
        self._counts = [0] * (
            2 * self._size
        )  # by phase, and once more, so that steps in a row are a slice

    @property
    def context(self) -> int:
        """Tokens that the members attend to in the next step."""
        return self._computed + len(self.request_ids) * (self._steps + 1)

    def prepare(self, most: int) -> int:
        """Take in whoever only decodes by now. How many steps, at most ``most``, ``run`` may take.

        Members may end in the last of them, none before. 0: the next step has to be planned, since
        somebody else is in it or may enter it. If it may preempt, if somebody decodes who is no
        member and whose turn is between theirs, if turns depend on each token, or if samples share
        blocks, the members are given back as well.
        """
        scheduler, free = self._scheduler, self._kv.pool.num_free
        if self.joined:
            self.joined = set()
        if self.left:
            self.left = set()
        if not self._take_in(free):
            self.release()
            return 0
        if scheduler.running or not self._members:
            return 0
        steps = self._members[0][0] - self._steps
        if steps > most:
            steps = most
        if len(self.request_ids) * (steps // self._size + 1) > free:
            steps = self._steps_with_blocks(steps)
        if len(scheduler.requests) == len(self.request_ids):
            return steps
        return self._until_someone_enters(steps)

    def begin(self) -> None:
        """Give a block to those whose next token begins one."""
        if self._counts[self._steps % self._size]:
            self._kv.begin_blocks(self._tables[self._due()])

    def end(self, now: float) -> list[Request]:
        """Everybody has got a token by ``now``. Index what is full; end, and return, those that are
        done.
        """
        self._steps += 1
        if self._counts[self._steps % self._size]:
            due = self._due()
            self._kv.fill_blocks(self._tables[due], self._contents[due])
        return self._finish(now)

    def run(self, steps: int, now: float) -> tuple[list[Request], list[int]]:
        """Take ``steps`` steps, which ``prepare`` has allowed, the last of which ends at ``now``.

        Returns those that ended with it, and for each step how many blocks were taken in it, up to
        as many steps as a block has tokens: then all of it is repeated.
        """
        phase, tables, contents = self._steps % self._size, self._tables, self._contents
        counts = self._counts[phase : phase + self._size]
        if first := sum(self._counts[:phase]):
            tables, contents = tables[first:] + tables[:first], contents[first:] + contents[:first]
        self._kv.take_turns(tables, contents, counts, steps)
        self._steps += steps
        self._scheduler.skip_steps(steps)
        return self._finish(now), counts[:steps]

    def release(self) -> None:
        """Give all members back to the scheduler."""
        self.left, self.joined = self.request_ids - self.joined, set()
        for member in self._members:
            self._give_back(member)
        self._members.clear()

    # ---- members ---------------------------------------------------------------------------------

    def _take_in(self, free: int) -> bool:
        """Let those join that lack one token; whether the next step, with so many free blocks,
        needs no member.
        """
        scheduler = self._scheduler
        if self._never or scheduler.num_samples:
            return False
        needed = 0
        if scheduler.running:
            for request in scheduler.ranked():
                if len(request.token_ids) == request.num_computed_tokens + 1:
                    # The scheduler would take one that stays in the order of ranks, between the
                    # members.
                    if not self._may_join(request):
                        return False
                    self._join(request)
            if scheduler.running:
                needed = self._kv.num_blocks_promised(scheduler.running.values())
        needed += self._counts[self._steps % self._size]
        return needed <= free

    def _may_join(self, request: Request) -> bool:
        """It has computed its prompt, nothing but its length ends it, and what it will have written
        is known.
        """
        return (
            request.num_computed_tokens >= request.num_prompt_tokens
            and self._token not in request.stop_token_ids
            and len(request.block_hashes) >= request.max_total_tokens // self._size
        )

    def _join(self, request: Request) -> None:
        ahead = request.num_computed_tokens - self._steps
        rank = self._scheduler.policy.rank(request)
        table, contents = self._kv.lend(request)
        heappush(self._members, (request.max_total_tokens - 1 - ahead, rank, ahead, request))
        at = self._place(-ahead % self._size, rank, 1)
        self._ranks.insert(at, rank)
        self._tables.insert(at, table)
        self._contents.insert(at, contents)
        self._computed += ahead
        self.request_ids.add(request.request_id)
        self.joined.add(request.request_id)
        self._scheduler.lend(request)

    def _give_back(self, member: Member) -> Request:
        """Bring a member up to the steps that were taken; it is the scheduler's again."""
        _, rank, ahead, request = member
        request.num_computed_tokens = computed = ahead + self._steps
        request.token_ids += [self._token] * (computed + 1 - len(request.token_ids))
        self._kv.settle(request)
        at = self._place(-ahead % self._size, rank, -1)
        del self._ranks[at], self._tables[at], self._contents[at]
        self._computed -= ahead
        self.request_ids.remove(request.request_id)
        self._scheduler.take_back(request)
        return request

    def _catch_up(self) -> None:
        """Somebody wants to know what the members' blocks hold: bring the tables up to the steps
        that were taken.
        """
        for _, rank, ahead, request in self._members:
            request.num_computed_tokens = ahead + self._steps
            self._kv.settle(request)
            self._contents[self._place(-ahead % self._size, rank, 0)] = self._kv.unfilled(request)

    def _place(self, phase: int, rank: Rank, change: int) -> int:
        """Where a member is or belongs, as one more or less is counted in its phase."""
        first, count = sum(self._counts[:phase]), self._counts[phase]
        self._counts[phase] = self._counts[phase + self._size] = count + change
        return bisect_left(self._ranks, rank, first, first + count)

    def _due(self) -> slice:
        """Those who have filled their blocks."""
        phase = self._steps % self._size
        first = sum(self._counts[:phase])
        return slice(first, first + self._counts[phase])

    def _finish(self, now: float) -> list[Request]:
        """End those members whose last token this was."""
        finished = []
        while self._members and self._members[0][0] == self._steps:
            finished.append(self._give_back(heappop(self._members)))
        for request in finished:
            self._scheduler.finish(request.request_id, FinishReason.LENGTH, now)
        return finished

    # ---- how long --------------------------------------------------------------------------------

    def _steps_with_blocks(self, most: int) -> int:
        """For how many steps, at most ``most``, there are blocks."""
        size, first = self._size, self._steps % self._size
        begun = (self._counts[first : first + size] * (most // size + 1))[:most]
        return bisect_right(list(accumulate(begun)), self._kv.pool.num_free)

    def _until_someone_enters(self, steps: int) -> int:
        """``steps``, less those in which the first waiting request might find room.

        A run frees no block, so whoever lacks room goes on to lack it, unless a running request
        happens to write the very prefix that it looks for.
        """
        scheduler, kv = self._scheduler, self._kv
        request = scheduler.policy.peek()
        if request is None or len(self.request_ids) >= min(
            self._budget, scheduler.config.max_num_seqs
        ):
            return steps
        due = self._counts[self._steps % self._size]
        if kv.has_room(request, NO_PREFIX, due):
            return 0  # with a prefix as well; most who have just come need no lookup
        prefix = kv.find_prefix(request)
        if kv.has_room(request, prefix, due):
            return 0
        if prefix.looked_up:
            for _, _, ahead, other in self._members:
                computed = ahead + self._steps
                steps = min(
                    steps, _steps_before_sharing(kv, request, other, computed, len(prefix.blocks))
                )
        return steps


def _steps_before_sharing(
    kv: KVCacheManager, waiting: Request, running: Request, computed: int, index: int
) -> int:
    """Steps until ``running`` has filled its block, if so far it has written what ``waiting`` looks
    for; else many.
    """
    size, never = kv.block_size, running.max_total_tokens
    written = computed // size
    if written > index or index >= (waiting.num_tokens - 1) // size:
        return never
    if written and running.block_hashes[written - 1] != waiting.block_hashes[written - 1]:
        return never
    return (written + 1) * size - computed
