"""Constraints by llguidance: an Earley parser over a lexer of derivatives, and a prefix tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twostroke.constraints.constraint import AllowedTokens, StatesFullError
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import PARAM

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_STATES = 50_000  # of the lexer, for all answers that share them
FULL = "too many states"  # what the library says then
# A state takes 0.5 kB (of a lexer with hundreds of terminals 2 kB), and a token adds 8 at most.
BYTES_PER_STATE = 500
STATES_PER_TOKEN = 8
BYTES_PER_CHAR = 50  # of the grammar's text, compiled
TOO_COMPLEX_HINT = "simplify the schema or grammar: fewer alternatives, shorter repetitions"


class SharedStates:
    """A matcher at the beginning of an answer, whose copies share the lexer states they reach.

    Attributes:
        num_tokens: Taken by all copies.
        is_full: One of them could not add to the states.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.num_tokens = 0
        self.is_full = False

    @property
    def num_bytes(self) -> int:
        return BYTES_PER_STATE * min(MAX_STATES, STATES_PER_TOKEN * self.num_tokens)


class CompiledGrammar:
    """Implements ``Grammar``.

    Args:
        text: In the library's notation.
        make_matcher: Makes a matcher at the beginning of an answer, without any states.
        end_bit: The token that stands for the end of the answer (``Vocabulary``).

    Attributes:
        states: What answers share from now on.
    """

    def __init__(self, text: str, make_matcher: Callable[[str], LLMatcher], end_bit: int) -> None:
        self._text = text
        self._make_matcher = make_matcher
        self._end_bit = end_bit
        self.states = SharedStates(make_matcher(text))

    @property
    def num_bytes(self) -> int:
        return BYTES_PER_CHAR * len(self._text) + self.states.num_bytes

    def start(
        self, end_token_ids: Sequence[int], vocab_size: int, *, alone: bool = False
    ) -> GrammarConstraint:
        if alone:
            matcher, states = self._make_matcher(self._text), None
        else:
            if self.states.is_full:
                self.states = SharedStates(self._make_matcher(self._text))
            matcher, states = self.states.matcher.deep_copy(), self.states
        return GrammarConstraint(matcher, self._end_bit, end_token_ids, vocab_size, states)


class GrammarConstraint:
    """Implements ``Constraint``. The end of an answer stays outside of the parser.

    Args:
        states: Those that it shares, if it does.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        end_bit: int,
        end_token_ids: Sequence[int],
        vocab_size: int,
        states: SharedStates | None,
    ) -> None:
        self._matcher = matcher
        self._states = states
        self._end_bit = end_bit
        self._ends = frozenset(token for token in end_token_ids if 0 <= token < vocab_size)
        self._num_ends = 0  # end tokens taken; all that follow the first are end tokens too
        self._vocab_size = vocab_size
        self._words: NDArray[np.uint32] = np.zeros(end_bit // 32 + 1, dtype=np.uint32)
        self._end_bits = np.zeros(-(-vocab_size // 8), dtype=np.uint8)
        for token in self._ends:
            self._end_bits[token >> 3] |= 1 << (token & 7)

    def advance(self, token_ids: Sequence[int]) -> None:
        if self._states is not None:
            self._states.num_tokens += len(token_ids)
        for token in token_ids:
            if self._num_ends or token in self._ends:
                if token not in self._ends or not (self._num_ends or self._may_end()):
                    raise self._refused(token)
                self._num_ends += 1
            elif token >= self._end_bit or not self._matcher.consume_token(token):
                raise self._refused(token)

    def roll_back(self, num_tokens: int) -> None:
        num_ends = min(self._num_ends, num_tokens)
        self._num_ends -= num_ends
        if num_tokens > num_ends and not self._matcher.rollback(num_tokens - num_ends):
            raise self._failed()

    def allowed(self) -> AllowedTokens:
        if self._num_ends:
            return AllowedTokens(self._end_bits.copy(), True)
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise self._failed()
        word, bit = divmod(self._end_bit, 32)
        may_end = bool(words[word] >> np.uint32(bit) & np.uint32(1))
        words[word] &= ~np.uint32(1 << bit)
        only_end = may_end and not words.any()
        return AllowedTokens(self._fit(words.view(np.uint8), may_end), only_end)

    def forced(self) -> list[int]:
        if self._num_ends:
            return []
        tokens = self._matcher.compute_ff_tokens()
        ends = (place for place, token in enumerate(tokens) if not self._is_text(token))
        return tokens[: next(ends, len(tokens))]

    def _is_text(self, token: int) -> bool:
        return token not in self._ends and token < self._end_bit

    def _may_end(self) -> bool:
        return self._matcher.is_accepting()

    def _fit(self, allowed: NDArray[np.uint8], may_end: bool) -> NDArray[np.uint8]:
        """The bits for the model's vocabulary, which may be larger or smaller, and its ends."""
        size = len(self._end_bits)
        bits = np.zeros(size, dtype=np.uint8)
        bits[: min(size, len(allowed))] = allowed[:size]
        bits &= ~self._end_bits
        if may_end:
            bits |= self._end_bits
        if rest := self._vocab_size % 8:
            bits[-1] &= (1 << rest) - 1
        return bits

    def _refused(self, token: int) -> InvalidRequestError:
        if self._matcher.is_error():
            return self._failed()
        return InvalidRequestError(
            f"token {token} is not allowed by the answer's form", param=PARAM
        )

    def _failed(self) -> InvalidRequestError:
        reason = first_line(self._matcher.get_error()) or self._matcher.stop_reason()
        if self._states is not None and FULL in reason:
            self._states.is_full = True
            return StatesFullError(f"the states of the answer's form are full: {reason}")
        return InvalidRequestError(
            f"the answer's form became too complex to follow: {reason}",
            param=PARAM,
            hint=TOO_COMPLEX_HINT,
        )


def first_line(message: str) -> str:
    """What the library says, without its dump of states; at most 300 characters."""
    text = message.split("<non-verbose/>")[0].split("<state>")[0]
    return " ".join(text.split())[:300]
