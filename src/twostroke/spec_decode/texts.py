"""Tokens in arrays that grow, and where in them the end of a text has come before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

# Between texts that are searched together, and before the first: equal to no token.
SEPARATOR = -1
# Places that are compared any further, the latest first: bounds the time of one search.
MAX_PLACES = 512


# Marks for each token of a text: with fewer, more pairs look as if they had come before.
MARKS_PER_TOKEN = 4
# This many tokens are put into the array at once: numpy takes its time to begin.
FEW = 32
# Where only one token matches, this many latest tokens are searched: it says little.
LATEST = 4096
_MIX = 0x9E3779B1


class GrowingTokens:
    """An array that is appended to; the oldest tokens are dropped beyond ``limit``.

    Knows which tokens, and which pairs of them, may have come before its last token, so that most
    searches that would find nothing are spared.

    Args:
        limit: Most tokens to keep; by default all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._array: Tokens = np.empty(256, dtype=np.int32)
        self._length = 0  # of the array; after it come
        self._pending: list[int] = []
        self._limit = limit
        self._num_marked = 0  # since the marks were made anew: those of dropped tokens stay
        self._singles, self._pairs = self._unmarked()
        self._before, self._last = SEPARATOR, SEPARATOR  # the last two tokens, not marked yet

    def __len__(self) -> int:
        return self._length + len(self._pending)

    @property
    def tokens(self) -> Tokens:
        """A view, valid until the next ``append``."""
        if self._pending:
            self._flush()
        return self._array[: self._length]

    def append(self, token_ids: Sequence[int]) -> None:
        self._pending += token_ids
        if len(self._pending) >= FEW:
            self._flush()
            return
        # Most often one token, and no search follows: what is done here is done at every step.
        before, last, size = self._before, self._last, len(self._pairs)
        for token in token_ids:
            self._singles[last % size] = 1
            self._pairs[(before * _MIX + last) % size] = 1
            before, last = last, token
        self._before, self._last = before, last

    def _flush(self) -> None:
        """Put into the array what was appended since, and mark all of it."""
        token_ids, self._pending = self._pending, []
        if self._limit is not None:
            token_ids = token_ids[-self._limit :]
            self._drop(self._length + len(token_ids) - self._limit)
        end = self._length + len(token_ids)
        if end > len(self._array):
            larger = np.empty(max(end, 2 * len(self._array)), dtype=np.int32)
            larger[: self._length] = self._array[: self._length]
            self._array = larger
            self._num_marked = 2 * len(larger)  # there is room for more marks
        self._array[self._length : end] = token_ids
        first, self._length = max(self._length - 2, 0), end
        self._num_marked += len(token_ids)
        if self._num_marked > 2 * len(self._array):
            self._singles, self._pairs = self._unmarked()
            self._num_marked, first = end, 0
        self._mark(self._array[first:end])

    def may_hold(self, before: int, last: int, min_length: int) -> bool:
        """False if ``find_end`` finds nothing that ends with these two tokens.

        The array's own last token is left out, as that of a text that is searched for its own end.
        Where the end has one token only, ``before`` is ``SEPARATOR``.
        """
        if min_length > 1:
            return self._pairs[(before * _MIX + last) % len(self._pairs)] != 0
        return self._singles[last % len(self._singles)] != 0

    def _unmarked(self) -> tuple[bytearray, bytearray]:
        size = MARKS_PER_TOKEN * len(self._array)
        return bytearray(size), bytearray(size)

    def _mark(self, tokens: Tokens) -> None:
        """Mark all of ``tokens``, the latest there are, but the last, each with its pair."""
        size, marked = len(self._pairs), tokens[:-1].astype(np.int64)
        np.frombuffer(self._singles, np.uint8)[marked % size] = 1
        np.frombuffer(self._pairs, np.uint8)[(marked[:-1] * _MIX + marked[1:]) % size] = 1
        self._before, self._last = [SEPARATOR, SEPARATOR, *tokens[-2:].tolist()][-2:]

    def _drop(self, count: int) -> None:
        if count > 0:
            self._array[: self._length - count] = self._array[count : self._length].copy()
            self._length -= count


class Places(NamedTuple):
    """Where the end of a text was found.

    Attributes:
        ends: Rising positions of the last token of each occurrence, at least one.
        length: How many tokens of the end match there: no other place matches more.
    """

    ends: NDArray[np.int64]
    length: int


def find_end(tokens: Tokens, end: Tokens, min_length: int) -> Places | None:
    """The places in ``tokens`` where the longest part of ``end`` stands, up to its last token.

    Args:
        end: At least one token; as many as are compared at most.
        min_length: Shorter matches count for nothing.
    """
    if len(end) < min_length or len(tokens) < min_length:
        return None
    last = end[-1]
    if len(end) > 1 and len(tokens) > 1:
        pairs = (tokens[1:] == last) & (tokens[:-1] == end[-2])
        places = np.flatnonzero(pairs)[-MAX_PLACES:] + 1
        if len(places):
            return _longest(tokens, end, places, min_length)
    if min_length > 1:
        return None
    latest = tokens[-LATEST:]
    places = np.flatnonzero(latest == last)[-MAX_PLACES:] + (len(tokens) - len(latest))
    return Places(places, 1) if len(places) else None


def _longest(
    tokens: Tokens, end: Tokens, places: NDArray[np.int64], min_length: int
) -> Places | None:
    """The places with the longest match, out of those where the last two tokens match."""
    before = places[:, None] - np.arange(len(end))  # [places, compared], falling
    equal = (tokens[np.maximum(before, 0)] == end[::-1]) & (before >= 0)
    lengths = equal.cumprod(axis=1).sum(axis=1)
    longest = int(lengths.max())
    return Places(places[lengths == longest], longest) if longest >= min_length else None
