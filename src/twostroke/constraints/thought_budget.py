"""A bound on the tokens of a thought: at the bound the end of the thought is forced.

The thought ends as the model's family ends one, and never within a character. Where the answer has
a form, that form begins after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from twostroke.constraints.constraint import AllowedTokens, Constraint
from twostroke.core.errors import InvalidRequestError
from twostroke.text.answer_parsing.reasoning import CLOSING, OPENING
from twostroke.text.tokenizer import Tokenizer

PARAM = "thinking_token_budget"
# Tokens that can be taken back: as many as one step tries without knowing whether they will stay.
MAX_ROLLED_BACK = 256
NO_BOUND = 2**62  # a budget that only counts
# Tokens of the prompt among which the tag that opens a thought would be.
_NUM_LAST_TOKENS = 8
_CHANNEL = "<|channel|>"


class ThoughtMarks(NamedTuple):
    """What opens and ends the thoughts of a family.

    Attributes:
        ending: Written after a line feed where the budget is used up; ``closing`` is part of it.
        ending_line: Written in place of ``ending`` after other text.
        again: More thoughts may follow the first. They share its budget.
    """

    opening: bytes
    closing: bytes
    ending: tuple[int, ...]
    ending_line: tuple[int, ...]
    again: bool


def thought_marks(tokenizer: Tokenizer) -> ThoughtMarks:
    """The marks that a tokenizer's models write: channels where it has their tokens, else tags."""
    if _CHANNEL in tokenizer.special_texts:
        # The model is left to open another message, for its answer or a call.
        ending = tuple(tokenizer.encode("<|end|><|start|>assistant", add_special_tokens=False))
        return ThoughtMarks(
            b"<|channel|>analysis<|message|>", b"<|end|>", ending, ending, again=True
        )
    endings = (f"{CLOSING}\n\n", f"\n{CLOSING}\n\n")
    ending, line = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in endings)
    return ThoughtMarks(OPENING.encode(), CLOSING.encode(), ending, line, again=False)


def thought_is_open(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether a prompt, token ids, ends within a thought."""
    end = tokenizer.decode(list(prompt[-_NUM_LAST_TOKENS:]), skip_special_tokens=False)
    return end.rstrip().endswith((OPENING, "<|channel|>analysis<|message|>"))


class _State(NamedTuple):
    """Where an answer stands.

    Attributes:
        num_tokens: Tokens of thoughts so far.
        tail: The last bytes, as many as a mark may need.
        ending: What is left of the forced end.
    """

    phase: Literal["before", "inside", "ending", "after"]
    num_tokens: int
    tail: bytes = b""
    ending: tuple[int, ...] = ()


class ThoughtBudget:
    """Implements ``Constraint``: that of the answer, if it has one, with a bound on its thought.

    Args:
        inner: The constraint of the whole answer, thought included.
        budget: Tokens between the marks. A character that is not complete then is completed.
        opened: The answer begins within the thought.
        vocab_size: Columns of the logits.
    """

    def __init__(
        self,
        inner: Constraint | None,
        marks: ThoughtMarks,
        tokenizer: Tokenizer,
        budget: int,
        *,
        opened: bool,
        vocab_size: int,
    ) -> None:
        self._inner = inner
        self._marks = marks
        self._tokenizer = tokenizer
        self._budget = budget
        self._vocab_size = vocab_size
        first = self._inside(0, b"\n") if opened else _State("before", 0)
        self._states: deque[_State] = deque([first], maxlen=MAX_ROLLED_BACK + 1)

    @property
    def num_tokens(self) -> int:
        """Tokens of thoughts so far, without the one that completes what opens or ends them."""
        return self._states[-1].num_tokens

    @property
    def is_over(self) -> bool:
        """Whether nothing can be forbidden any more."""
        return self._inner is None and self._states[-1].phase == "after"

    def advance(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            state = self._states[-1]
            if state.ending and token != state.ending[0]:
                raise InvalidRequestError(f"token {token} does not end the thought", param=PARAM)
            if self._inner is not None:
                self._inner.advance([token])
            self._states.append(self._next(state, token))

    def roll_back(self, num_tokens: int) -> None:
        if num_tokens >= len(self._states):
            raise InvalidRequestError(
                f"{num_tokens} tokens cannot be taken back: too many", param=PARAM
            )
        for _ in range(num_tokens):
            self._states.pop()
        if self._inner is not None:
            self._inner.roll_back(num_tokens)

    def allowed(self) -> AllowedTokens:
        if ending := self._states[-1].ending:
            bits = np.zeros(-(-self._vocab_size // 8), dtype=np.uint8)
            bits[ending[0] >> 3] = 1 << (ending[0] & 7)
            return AllowedTokens(bits, False)
        if self._inner is not None:
            return self._inner.allowed()
        bits = np.full(-(-self._vocab_size // 8), 255, dtype=np.uint8)
        if rest := self._vocab_size % 8:
            bits[-1] = (1 << rest) - 1
        return AllowedTokens(bits, False)

    def forced(self) -> list[int]:
        if ending := self._states[-1].ending:
            return list(ending)
        return [] if self._inner is None else self._inner.forced()

    def _next(self, state: _State, token: int) -> _State:
        if state.phase == "after":
            return state
        if state.phase == "ending":
            rest = state.ending[1:]
            return state._replace(ending=rest) if rest else self._ended(state)
        text = state.tail + self._tokenizer.token_bytes(token)
        if state.phase == "before":
            return self._before(state, text)
        if self._marks.closing in text:
            return self._ended(state)
        return self._inside(state.num_tokens + 1, text)

    def _before(self, state: _State, text: bytes) -> _State:
        opening = self._marks.opening
        if opening in text and (self._marks.again or text.lstrip().startswith(opening)):
            return self._inside(state.num_tokens, text.partition(opening)[2])
        if not self._marks.again and not opening.startswith(text.strip()):
            return _State("after", state.num_tokens)  # it begins with something else
        return _State("before", state.num_tokens, text[-len(opening) :])

    def _inside(self, num_tokens: int, text: bytes) -> _State:
        tail = text[-len(self._marks.closing) :]
        if num_tokens < self._budget or _is_cut(tail):
            return _State("inside", num_tokens, tail)
        at_line = not text or text.endswith(b"\n")
        ending = self._marks.ending if at_line else self._marks.ending_line
        return _State("ending", num_tokens, ending=ending)

    def _ended(self, state: _State) -> _State:
        return _State("before" if self._marks.again else "after", state.num_tokens)


def _is_cut(tail: bytes) -> bool:
    """Whether bytes end within a character of UTF-8."""
    for place in range(1, min(4, len(tail)) + 1):
        byte = tail[-place]
        if byte >= 0xC0:  # it begins one of 2, 3 or 4 bytes
            return place < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return False
