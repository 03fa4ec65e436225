"""An executor without a model that knows what every KV slot must hold, and its driver."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from twostroke.core.request import Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo

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


class FakeExecutor:
    """Keeps a fingerprint per slot, and fails if a request reads a wrong one.

    Its block tables come only from ``table_changed_from`` on, as those of a real executor do.
    """

    def __init__(self, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 128) -> None:
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
        self.fail_on: set[str] = set()
        self.raise_next: Exception | None = None

    def execute(self, plan: StepPlan) -> StepResult:
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
        for request_id, item in plan.scheduled.items():
            table = self.tables.setdefault(request_id, [])
            table[item.table_changed_from :] = item.block_ids[item.table_changed_from :]
            assert table == item.block_ids, (
                f"{request_id}: the announced changes do not give the block table"
            )
            self._write(item.request, item.start, item.num_tokens)
        for item in plan.scheduled.values():
            self._check(item.request, item.start + item.num_tokens)
        samples = {
            request_id: item.request for request_id, item in plan.scheduled.items() if item.samples
        }
        return StepResult(
            token_ids={i: [next_token(r.token_ids, r.seed)] for i, r in samples.items()},
            duration=0.001,
        )

    def close(self) -> None:
        self.tables.clear()

    def _slot(self, request: Request, position: int) -> int:
        size = self.info.block_size
        return self.tables[request.request_id][position // size] * size + position % size

    def _write(self, request: Request, start: int, num_tokens: int) -> None:
        previous = self.slots[self._slot(request, start - 1)] if start else b""
        for position in range(start, start + num_tokens):
            previous = chain(previous, request.token_ids[position])
            self.slots[self._slot(request, position)] = previous

    def _check(self, request: Request, num_tokens: int) -> None:
        expected = b""
        for position in range(num_tokens):
            expected = chain(expected, request.token_ids[position])
            actual = self.slots[self._slot(request, position)]
            assert actual == expected, (
                f"{request.request_id} reads wrong keys and values at position {position}"
            )
