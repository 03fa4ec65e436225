"""An executor without a model that knows what every KV slot must hold, and its driver."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from twostroke.core import wire
from twostroke.core.errors import ErrorMessage, TwostrokeError
from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.runtime.request_states import RequestStates
from twostroke.sampling.request_state import RequestState

VOCAB = 50
EMPTY = b"empty"


def chain(previous: bytes, token: int) -> bytes:
    """Stands for the keys and values at a position: they depend on this token and all before it."""
    return blake2b(previous + token.to_bytes(4, "little"), digest_size=8).digest()


def next_token(token_ids: Iterable[int], seed: int = 0) -> int:
    """The fake model: a function of the whole sequence (and the seed, as if sampled)."""
    state = seed.to_bytes(8, "little")
    for token in token_ids:
        state = chain(state, token)
    return int.from_bytes(state, "little") % VOCAB


def failed_with(error: ErrorMessage | None, kind: type[TwostrokeError]) -> bool:
    """Whether an output's error is of this kind."""
    return error is not None and type(error.to_exception()) is kind


class FakeExecutor:
    """Keeps a fingerprint per slot instead of keys and values, and fails if a request reads a
    wrong one.

    It knows of requests, tokens and block tables only what plans say of them, as a real executor
    does. With ``num_drafts`` it guesses as many next tokens after each one it draws, some of them
    wrong, and verifies them in the next step.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 128,
        num_drafts: int = 0,
    ) -> None:
        self.info = ExecutorInfo(
            model_id="fake",
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=block_size,
            eos_token_ids=frozenset({0}),
        )
        self.slots = [EMPTY] * (num_blocks * block_size)
        self.tables: dict[str, list[int]] = {}
        self.requests = RequestStates()
        self.num_drafts = num_drafts
        self.num_accepted = 0
        self.fail_on: set[str] = set()
        self.raise_next: Exception | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        plan = wire.decode(wire.encode(plan), StepPlan)  # nothing else may be needed
        self.requests.update(plan)
        for request_id in plan.released:
            self.tables.pop(request_id, None)
        if self.raise_next:
            error, self.raise_next = self.raise_next, None
            raise error
        size = self.info.block_size
        sources = [
            self.slots[source * size : (source + 1) * size] for source, _ in plan.block_copies
        ]
        for (_, target), content in zip(plan.block_copies, sources, strict=True):
            self.slots[target * size : (target + 1) * size] = content
        for share in plan.scheduled.values():
            self._write(share)
        for share in plan.scheduled.values():
            self._check(share)
        result = StepResult(duration=0.001)
        for share in plan.scheduled.values():
            if share.samples:
                self._draw(share, result)
        return wire.decode(wire.encode(result), StepResult)

    def close(self) -> None:
        self.tables.clear()

    def next_token(self, request: RequestState, token_ids: list[int]) -> int:
        return next_token(token_ids, request.seed)

    def _draw(self, share: ScheduledRequest, result: StepResult) -> None:
        """Draw, accept drafts as far as they equal what is drawn, and guess on."""
        request = self.requests[share.request_id]
        token_ids, tokens = list(request.token_ids), list[int]()
        for draft in [*share.draft_token_ids, None]:
            tokens.append(self.next_token(request, token_ids))
            token_ids.append(tokens[-1])
            if draft != tokens[-1]:
                break
        result.token_ids[share.request_id] = tokens
        if share.draft_token_ids:
            result.num_accepted_drafts[share.request_id] = len(tokens) - 1
            self.num_accepted += len(tokens) - 1
        drafts: list[int] = []
        for _ in range(self.num_drafts):
            drafts.append(self.next_token(request, [*token_ids, *drafts]))
        if drafts and token_ids[-1] % 3 == 0:
            drafts[token_ids[-1] % len(drafts)] += 1
        if drafts:
            result.draft_token_ids[share.request_id] = drafts

    def _slot(self, request_id: str, position: int) -> int:
        size = self.info.block_size
        return self.tables[request_id][position // size] * size + position % size

    def _write(self, share: ScheduledRequest) -> None:
        table = self.tables.setdefault(share.request_id, [])
        first = share.first_new_block
        assert first <= len(table), "a part of the block table was never sent"
        table[first : first + len(share.new_block_ids)] = share.new_block_ids
        assert len(table) >= share.num_blocks, "the step's slots are not in the block table"
        previous = self.slots[self._slot(share.request_id, share.start - 1)] if share.start else b""
        for offset, token in enumerate(self.requests.input_tokens(share)):
            previous = chain(previous, token)
            self.slots[self._slot(share.request_id, share.start + offset)] = previous

    def _check(self, share: ScheduledRequest) -> None:
        computed = self.requests[share.request_id].token_ids[: share.start]
        expected = b""
        for position, token in enumerate([*computed, *self.requests.input_tokens(share)]):
            expected = chain(expected, token)
            actual = self.slots[self._slot(share.request_id, position)]
            assert actual == expected, (
                f"{share.request_id} reads wrong keys and values at position {position}"
            )
