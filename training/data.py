"""Training batches: tokens of conversations, their losses and positions, under a budget.

Positions: the model has 8192 of them but is trained on short sequences, so some examples skip
positions between turns or inside padding (after PoSE, Zhu et al. 2023): relative distances up to
8191 occur without the cost of sequences that long.
"""

import math
import random
from dataclasses import dataclass
from typing import Protocol

import torch
from tokenizers import Tokenizer

from training.bank import Bank
from training.conversations import Conversation, ConversationBuilder
from training.teacher import Teacher
from training.tokenizer import IM_END, IM_START, MODEL_MAX_LENGTH

POOL_EXAMPLES = 1024
WIDTH_STEP = 8  # Tokens that the length of a batch is a multiple of.
LONGEST_STUB = 16  # Tokens kept of an answer that is cut short.


@dataclass(frozen=True)
class Example:
    """One sequence: token ids, which of them have a loss, and positions (all of length n).

    `question`, if there is one, is what the turn asks that ends at the index `asked`, where the
    answer begins.
    """

    ids: list[int]
    has_loss: list[bool]
    positions: list[int]
    question: str | None = None
    asked: int = -1


@dataclass(frozen=True)
class Batch:
    """Right-padded tensors, [rows, length]; causal attention needs no mask for padding.

    `questions` are those that are known, in row `rows[i]` asked at index `asked[i]`.
    """

    ids: torch.Tensor
    has_loss: torch.Tensor  # bool
    positions: torch.Tensor
    questions: list[str]
    rows: torch.Tensor
    asked: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        ids, has_loss, positions, rows, asked = (
            t.to(device) for t in (self.ids, self.has_loss, self.positions, self.rows, self.asked)
        )
        return Batch(ids, has_loss, positions, self.questions, rows, asked)


class Encoder:
    """Conversations to examples, token for token what the chat template renders."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens in the text count as such."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of tokens, without the special ones."""
        text: str = self._tokenizer.decode(ids)
        return text

    def cut(self, text: str, tokens: int) -> str:
        """The first tokens of a text."""
        return self.decode(self.encode(text)[:tokens])

    def _cached(self, text: str) -> list[int]:
        tokens = self._cache.get(text)
        if tokens is None:
            if len(self._cache) > 20000:
                self._cache.clear()
            tokens = self._cache[text] = self.encode(text)
        return tokens

    def example(self, conversation: Conversation, rng: random.Random) -> Example:
        """Tokens with loss on the assistant's words and on what ends them."""
        ids: list[int] = []
        has_loss: list[bool] = []
        gaps: list[int] = []  # Token indices at which positions may jump.
        last = len(conversation.messages) - 1
        for number, message in enumerate(conversation.messages):
            head = self._cached(f"{IM_START}{message.role}\n")
            answer = message.role == "assistant"
            body = (
                self._cached(message.content + IM_END)
                if answer
                else self.encode(message.content + IM_END)
            )
            tail = self._cached("\n")
            if conversation.bare and number == last:
                body, tail = [], []
            elif conversation.stub and number == last and len(body) > LONGEST_STUB:
                body, tail = body[: rng.randrange(5, LONGEST_STUB + 1)], []
            if number and number < last:
                gaps.append(len(ids))
            if message.far:
                near = len(self.encode(message.content[message.far :]))
                start, end = len(ids) + len(head), len(ids) + len(head) + len(body) - near - 1
                gaps += [rng.randrange(start, end) for _ in range(2) if end > start] + [
                    max(start, end)
                ]
            ids += head + body + tail
            asked = len(ids) - len(body) - len(tail) - 1
            has_loss += [False] * len(head) + [answer] * len(body) + [False] * len(tail)
        limit = MODEL_MAX_LENGTH
        ids, has_loss = ids[:limit], has_loss[:limit]
        question = conversation.question if asked < limit else None
        return Example(ids, has_loss, draw_positions(len(ids), gaps, rng), question, asked)


def draw_positions(length: int, gaps: list[int], rng: random.Random) -> list[int]:
    """Positions 0, 1, 2 ..., with jumps within the context in half of the examples."""
    positions = list(range(length))
    slack = MODEL_MAX_LENGTH - length
    if not gaps or slack < 2 or rng.random() < 0.5:
        return positions
    total = (
        round(math.exp(rng.uniform(math.log(1), math.log(slack))))
        if rng.random() < 0.5
        else rng.randrange(slack)
    )
    places = sorted(rng.sample(gaps, min(len(gaps), rng.choice((1, 1, 2, 3)))))
    cuts = sorted(rng.randrange(total + 1) for _ in places[1:])
    for place, size in zip(
        places, (b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)), strict=True
    ):
        for index in range(place, length):
            positions[index] += size
    return positions


def collate(examples: list[Example], token_budget: int = 0) -> Batch:
    """Pads to the longest example, rounded up; padding has no loss and repeats the last position.

    With empty rows up to the budget there are few shapes, which matters: the CPU's matrix library
    compiles a kernel for each one that it meets, and spent a third of the training on that and on
    the memory it takes.
    """
    width = -(-max(len(e.ids) for e in examples) // WIDTH_STEP) * WIDTH_STEP
    rows = max(len(examples), token_budget // width)
    ids = torch.zeros(rows, width, dtype=torch.long)
    has_loss = torch.zeros(rows, width, dtype=torch.bool)
    positions = torch.zeros(rows, width, dtype=torch.long)
    for row, e in enumerate(examples):
        n = len(e.ids)
        ids[row, :n] = torch.tensor(e.ids)
        has_loss[row, :n] = torch.tensor(e.has_loss)
        positions[row, :n] = torch.tensor(e.positions)
        positions[row, n:] = e.positions[-1]
    questions = [
        (e.question, row, e.asked) for row, e in enumerate(examples) if e.question is not None
    ]
    where, asked = (torch.tensor([k[i] for k in questions], dtype=torch.long) for i in (1, 2))
    return Batch(ids, has_loss, positions, [question for question, _, _ in questions], where, asked)


class Builder(Protocol):
    """Draws conversations."""

    def build(self, rng: random.Random, progress: float) -> Conversation:
        """One conversation; `progress` in [0, 1] is how far training has come."""
        ...


class BatchSource:
    """An endless, seeded, resumable stream of batches.

    Examples are drawn in pools, sorted by length within a pool and cut into batches of at most
    `token_budget` padded tokens. A pool depends on (seed, pool number, the progress at which it was
    begun), and `state()` holds these, so a resumed run sees the same batches.
    """

    def __init__(
        self,
        bank: Bank,
        tokenizer: Tokenizer,
        seed: int,
        token_budget: int,
        teacher: Teacher | None = None,
        builder: Builder | None = None,
    ) -> None:
        self._builder = builder or ConversationBuilder(bank, teacher)
        self._encoder = Encoder(tokenizer)
        self._seed = seed
        self._budget = token_budget
        self._pool = -1
        self._cursor = 0
        self._progress = 0.0
        self._batches: list[list[Example]] = []

    def state(self) -> dict[str, float]:
        """What `restore` needs."""
        return {"pool": self._pool, "cursor": self._cursor, "progress": self._progress}

    def restore(self, state: dict[str, float]) -> None:
        """Continues after the batch that was drawn last when `state` was taken."""
        self._pool, self._progress = int(state["pool"]), float(state["progress"])
        if self._pool >= 0:
            self._batches = self._make_pool()
        self._cursor = int(state["cursor"])

    def next(self, progress: float) -> Batch:
        """The next batch; `progress` in [0, 1] takes effect when a new pool is begun."""
        if self._cursor >= len(self._batches):
            self._pool, self._cursor, self._progress = self._pool + 1, 0, progress
            self._batches = self._make_pool()
        batch = collate(self._batches[self._cursor], self._budget)
        self._cursor += 1
        return batch

    def _make_pool(self) -> list[list[Example]]:
        rng = random.Random(f"{self._seed}/{self._pool}")
        examples = [
            self._encoder.example(self._builder.build(rng, self._progress), rng)
            for _ in range(POOL_EXAMPLES)
        ]
        examples.sort(key=lambda e: len(e.ids))
        batches: list[list[Example]] = [[]]
        for example in examples:
            if batches[-1] and (len(batches[-1]) + 1) * len(example.ids) > self._budget:
                batches.append([])
            batches[-1].append(example)
        rng.shuffle(batches)
        return batches
