"""An executor without a model that knows what every KV slot must hold, and its driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b

from tests import wire
from twostroke.core.errors import ErrorMessage, TwostrokeError
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.step import NO_SLOT, ScheduledRequest, StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine, ThreadLink
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.immediate_executor import ImmediateExecutor
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.connector import KVConnector
from twostroke.kv_tiers.transfers import Transfers
from twostroke.runtime.live_requests import LiveRequests
from twostroke.sampling.request_state import RequestState

VOCAB = 50
SLOT_BYTES = 8
EMPTY = b"empty...".ljust(SLOT_BYTES)
STATE_PARTS, PART_BYTES = 3, 4  # a state is one byte, its length, and as many as that
OpenTiers = Callable[[int, threading.Event], dict[str, KVConnector]]


def chain(previous: bytes, token: int) -> bytes:
    """Stands for the keys and values at a position: they depend on this token and all before it."""
    return blake2b(previous + token.to_bytes(4, "little"), digest_size=SLOT_BYTES).digest()


def in_group(fingerprint: bytes, group: int) -> bytes:
    """The same position's keys and values in the layers of a group."""
    return bytes([fingerprint[0] ^ group]) + fingerprint[1:]


def next_token(token_ids: Iterable[int], seed: int = 0) -> int:
    """The fake model: a function of the whole sequence (and the seed, as if sampled)."""
    state = seed.to_bytes(8, "little")
    for token in token_ids:
        state = chain(state, token)
    return int.from_bytes(state, "little") % VOCAB


def engine_of(client: object) -> LLMEngine:
    """The engine that a client runs on a thread."""
    assert isinstance(client, AsyncEngine) and isinstance(client._link, ThreadLink)
    return client._link._messages.engine


def failed_with(error: ErrorMessage | None, kind: type[TwostrokeError]) -> bool:
    """Whether an output's error is of this kind."""
    return error is not None and type(error.to_exception()) is kind


class FakeExecutor(ImmediateExecutor):
    """Keeps a fingerprint per slot instead of keys and values, and fails if a request reads a
    wrong one.

    It knows of requests, tokens and block tables only what plans say of them, as a real executor
    does. With ``num_drafts`` it guesses as many next tokens after each one it draws, some of them
    wrong, and verifies them in the next step. ``open_tiers`` gives it tiers for blocks of a size.
    With ``groups`` it keeps a fingerprint for each of them, and reads what their windows show. With
    ``num_state_slots`` it has recurrent layers, too, whose state is that of all tokens so far. With
    ``repeat_every`` it repeats every so many draws of those that may have to be repeated: after
    drafts, and of answers that have a form. With ``runs_ahead`` it takes a plan before the result
    of the one before is collected, and then computes with the token that it drew.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 128,
        num_drafts: int = 0,
        open_tiers: OpenTiers | None = None,
        groups: KVGroups = ONE_GROUP,
        num_state_slots: int = 0,
        repeat_every: int = 0,
        runs_ahead: bool = False,
    ) -> None:
        super().__init__()
        self.last_drawn: dict[str, int] = {}
        self.repeat_every, self.num_draws = repeat_every, 0
        self.states = [b"not written"] * num_state_slots
        self.live: dict[str, int] = {}
        self.info = ExecutorInfo(
            model_id="fake",
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=block_size,
            eos_token_ids=frozenset({0}),
            kv_groups=groups,
            num_state_slots=num_state_slots,
            runs_ahead=runs_ahead,
            num_state_parts=STATE_PARTS if num_state_slots and open_tiers is not None else 0,
        )
        self.slots = [EMPTY] * (num_blocks * block_size)
        self.tables: dict[str, list[int]] = {}
        self.requests = LiveRequests()
        self.num_drafts = num_drafts
        self.num_accepted = 0
        self.fail_on: set[str] = set()
        self.raise_next: Exception | None = None
        self.transfers: Transfers | None = None
        if open_tiers is not None:
            memory = FakeBlockMemory(self.slots, block_size, self.states)
            wake = threading.Event()
            tiers = open_tiers(memory.block_bytes, wake)
            self.transfers = Transfers(tiers, memory, wake)
            self.info = replace(self.info, tiers=[tier.info for tier in tiers.values()])

    def execute(self, plan: StepPlan) -> StepResult:
        plan = wire.decode(wire.encode(plan), StepPlan)  # nothing else may be needed
        self.requests.update(plan)
        for request_id in plan.released:
            self.tables.pop(request_id, None)
            self.live.pop(request_id, None)
        if self.raise_next:
            error, self.raise_next = self.raise_next, None
            raise error
        if self.transfers is not None:
            self.transfers.begin(plan)
        size = self.info.block_size
        sources = [
            self.slots[source * size : (source + 1) * size] for source, _ in plan.block_copies
        ]
        for (_, target), content in zip(plan.block_copies, sources, strict=True):
            self.slots[target * size : (target + 1) * size] = content
        self._start_states(plan)
        for share in plan.scheduled.values():
            self._write(share)
        for share in plan.scheduled.values():
            self._check(share)
        result = StepResult(duration=0.001)
        for share in plan.scheduled.values():
            if share.samples:
                self._draw(share, result)
        if self.transfers is not None:
            self.transfers.advance(plan, result, 0.0)
        return wire.decode(wire.encode(result), StepResult)

    def close(self) -> None:
        self.tables.clear()
        if self.transfers is not None:
            self.transfers.close()

    def next_token(self, request: RequestState, token_ids: list[int]) -> int:
        return next_token(token_ids, request.spec.seed)

    def _draw(self, share: ScheduledRequest, result: StepResult) -> None:
        """Draw, accept drafts as far as they equal what is drawn, and guess on."""
        request = self.requests[share.request_id]
        if self.repeat_every and (share.draft_token_ids or request.params.is_constrained):
            self.num_draws += 1
            if self.num_draws % self.repeat_every == 0:
                result.repeated.append(share.request_id)
                return
        token_ids, tokens = self._token_ids(request), list[int]()
        for draft in [*share.draft_token_ids, None]:
            tokens.append(self.next_token(request, token_ids))
            token_ids.append(tokens[-1])
            if draft != tokens[-1]:
                break
        result.token_ids[share.request_id] = tokens
        self.last_drawn[share.request_id] = tokens[-1]
        if share.draft_token_ids:
            result.num_accepted_drafts[share.request_id] = len(tokens) - 1
            self.num_accepted += len(tokens) - 1
        drafts: list[int] = []
        ahead = self.info.runs_ahead  # then only what was asked for: its step is waited for
        for _ in range(share.max_new_drafts if ahead else self.num_drafts):
            drafts.append(self.next_token(request, [*token_ids, *drafts]))
        if drafts and token_ids[-1] % 3 == 0:
            drafts[token_ids[-1] % len(drafts)] += 1
        if drafts:
            result.draft_token_ids[share.request_id] = drafts

    def _token_ids(self, request: RequestState) -> list[int]:
        """All tokens, the one that the pass before drew included."""
        if not request.num_awaited:
            return list(request.token_ids)
        return [*request.token_ids, self.last_drawn[request.request_id]]

    def _input_tokens(self, share: ScheduledRequest) -> list[int]:
        tokens, request = self.requests.input_tokens(share), self.requests[share.request_id]
        if request.num_awaited:
            tokens[-1] = self.last_drawn[share.request_id]
        return tokens

    def _slot(self, request_id: str, position: int, group: int) -> int:
        size, index = self.info.block_size, position // self.info.block_size
        block = self.tables[request_id][index * self.info.kv_groups.count + group]
        assert block >= 0, f"{request_id} has no block for position {position} in group {group}"
        return block * size + position % size

    def _write(self, share: ScheduledRequest) -> None:
        table = self.tables.setdefault(share.request_id, [])
        first = share.first_new_block
        assert first <= len(table), "a part of the block table was never sent"
        table[first : first + len(share.new_block_ids)] = share.new_block_ids
        num_blocks = share.num_blocks * self.info.kv_groups.count
        assert len(table) >= num_blocks, "the step's slots are not in the block table"
        previous = b""
        for token in self.requests[share.request_id].token_ids[: share.start]:
            previous = chain(previous, token)
        self._advance_state(share, previous)
        for offset, token in enumerate(self._input_tokens(share)):
            previous = chain(previous, token)
            for group in range(self.info.kv_groups.count):
                slot = self._slot(share.request_id, share.start + offset, group)
                self.slots[slot] = in_group(previous, group)

    def _start_states(self, plan: StepPlan) -> None:
        """Copy the checkpoints that requests start from, all of them before any is written."""
        starts: dict[int, bytes] = {}
        for share in plan.scheduled.values():
            if share.states is not None:
                self.live[share.request_id] = share.states.live
                start = share.states.start
                if start is None:
                    continue
                starts[share.states.live] = b"" if start == NO_SLOT else self.states[start]
        for slot, state in starts.items():
            self.states[slot] = state

    def _advance_state(self, share: ScheduledRequest, before: bytes) -> None:
        if not self.states:
            return
        live = self.live[share.request_id]
        state = self.states[live]
        assert state == before, f"{share.request_id} starts from a state that is not its own"
        copies = [] if share.states is None else share.states.checkpoints
        for number, token in enumerate(self._input_tokens(share), 1):
            state = chain(state, token)
            for slot in [slot for count, slot in copies if count == number]:
                self.states[slot] = state
        self.states[live] = state

    def _check(self, share: ScheduledRequest) -> None:
        computed = self.requests[share.request_id].token_ids[: share.start]
        expected = b""
        for position, token in enumerate([*computed, *self._input_tokens(share)]):
            expected = chain(expected, token)
            for group, window in enumerate(self.info.kv_groups.windows):
                if window is not None and position <= share.start - window:
                    continue
                actual = self.slots[self._slot(share.request_id, position, group)]
                assert actual == in_group(expected, group), (
                    f"{share.request_id} reads wrong keys and values at position {position}"
                )


class FakeBlockMemory:
    """Implements ``BlockMemory`` on the fake executor's slots; after them come parts of states."""

    def __init__(self, slots: list[bytes], block_size: int, states: list[bytes]) -> None:
        self._slots, self._size, self._states = slots, block_size, states
        self.block_bytes = block_size * SLOT_BYTES

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        return [memoryview(self._read(block)) for block in block_ids]

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        for block, data in zip(block_ids, blocks, strict=True):
            assert len(data) == self.block_bytes
            if (part := block - len(self._slots) // self._size) >= 0:
                slot, offset = part // STATE_PARTS, part % STATE_PARTS * PART_BYTES
                packed = bytearray(self._packed(slot))
                packed[offset : offset + PART_BYTES] = data[:PART_BYTES]
                self._states[slot] = bytes(packed[1 : 1 + packed[0]])
                continue
            for offset in range(self._size):
                start = offset * SLOT_BYTES
                self._slots[block * self._size + offset] = bytes(data[start : start + SLOT_BYTES])

    def _read(self, block: int) -> bytes:
        if (part := block - len(self._slots) // self._size) < 0:
            return b"".join(self._slots[block * self._size : (block + 1) * self._size])
        offset = part % STATE_PARTS * PART_BYTES
        packed = self._packed(part // STATE_PARTS)[offset : offset + PART_BYTES]
        return packed.ljust(self.block_bytes)

    def _packed(self, slot: int) -> bytes:
        state = self._states[slot]
        return (bytes([len(state)]) + state).ljust(STATE_PARTS * PART_BYTES, b"\0")
