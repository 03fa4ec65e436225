"""The seam between what an answer has to be and the loop that draws its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from twostroke.core.errors import InvalidRequestError


class StatesFullError(InvalidRequestError):
    """The grammar can remember no more states; one that begins anew can."""


class AllowedTokens(NamedTuple):
    """The tokens that may come next.

    Attributes:
        bits: uint8 [ceil(vocab / 8)]; token ``t`` is allowed if bit ``t % 8`` of byte ``t // 8`` is
            set, and never beyond the vocabulary.
        only_end: Only end tokens are left: the answer is complete, and cannot go on.
    """

    bits: NDArray[np.uint8]
    only_end: bool


class Constraint(Protocol):
    """Follows one answer token by token, and says which tokens may come next.

    One request owns it, and one thread at a time calls it. It depends on nothing but the tokens of
    the answer, so that the same tokens give the same state: after a preemption it is made anew.

    All methods raise InvalidRequestError when the constraint has become too complex to follow, or a
    token is not allowed. From then on only throwing it away makes sense.
    """

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take the next tokens of the answer, end tokens included."""

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens, as if they had not come."""

    def allowed(self) -> AllowedTokens:
        """What may come next. The bits are the caller's."""

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is no choice; may be empty."""


class Grammar(Protocol):
    """What constraints of the same form share: compiled once. Safe on any thread with a deep stack
    (``compiling/turn_threads.py``).

    The states that answers have been through are remembered for all, up to a limit. Beyond it their
    constraints raise ``StatesFullError``: what starts then has none of these states.
    """

    @property
    def num_bytes(self) -> int:
        """What it holds by now, estimated."""
        ...

    def start(
        self, end_token_ids: Sequence[int], vocab_size: int, *, alone: bool = False
    ) -> Constraint:
        """A constraint for one answer, before its first token.

        Args:
            end_token_ids: Tokens that end the answer: allowed where it may end, and only there.
            vocab_size: Columns of the logits, for the length of the bits.
            alone: It remembers states by itself, and has all the room for its own answer.
        """
        ...
