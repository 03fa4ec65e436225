"""Constraints by llguidance: an Earley parser over a lexer of derivatives, and a prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twostroke.constraints.constraint import AllowedTokens
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import PARAM

if TYPE_CHECKING:
    from llguidance import LLMatcher

TOO_COMPLEX_HINT = "simplify the schema or grammar: fewer alternatives, shorter repetitions"


class CompiledGrammar:
    """Implements ``Grammar``.

    Args:
        matcher: At the beginning of an answer; only copied from here on.
        end_bit: The token that stands for the end of the answer (``Vocabulary``).
    """

    def __init__(self, matcher: LLMatcher, end_bit: int) -> None:
        self._matcher = matcher
        self._end_bit = end_bit

    def start(self, end_token_ids: Sequence[int], vocab_size: int) -> GrammarConstraint:
        return GrammarConstraint(
            self._matcher.deep_copy(), self._end_bit, end_token_ids, vocab_size
        )


class GrammarConstraint:
    """Implements ``Constraint``. The end of an answer stays outside of the parser."""

    def __init__(
        self, matcher: LLMatcher, end_bit: int, end_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        self._matcher = matcher
        self._end_bit = end_bit
        self._ends = frozenset(token for token in end_token_ids if 0 <= token < vocab_size)
        self._num_ends = 0  # end tokens taken; all that follow the first are end tokens too
        self._vocab_size = vocab_size
        self._words: NDArray[np.uint32] = np.zeros(end_bit // 32 + 1, dtype=np.uint32)
        self._end_bits = np.zeros(-(-vocab_size // 8), dtype=np.uint8)
        for token in self._ends:
            self._end_bits[token >> 3] |= 1 << (token & 7)

    def advance(self, token_ids: Sequence[int]) -> None:
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
        return InvalidRequestError(
            f"the answer's form became too complex to follow: {reason}",
            param=PARAM,
            hint=TOO_COMPLEX_HINT,
        )


def first_line(message: str) -> str:
    """What the library says, without its dump of states; at most 300 characters."""
    text = message.split("<non-verbose/>")[0].split("<state>")[0]
    return " ".join(text.split())[:300]
