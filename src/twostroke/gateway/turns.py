"""Turns by key: some work at a time, each key's in order, keys one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from twostroke.core.errors import QueueFullError

MAX_WAITING = 256


class Turns:
    """Places that the calls of all keys share, on one event loop's thread.

    Args:
        at_once: Places; ``None``: as many as are wanted.
        of_one_key: That one key may hold.
        rests: Whether a key waits as long as its last turn took before its next one.
    """

    def __init__(self, at_once: int | None, of_one_key: int, *, rests: bool = False) -> None:
        self._at_once = at_once
        self._of_one_key = of_one_key
        self._rests = rests
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next key is the first
        self._rested_at: dict[str, float] = {}
        self._waking: asyncio.TimerHandle | None = None

    async def take(self, key: str) -> Turn:
        """Wait for a place.

        Raises:
            QueueFullError: Too many calls of this key wait already.
        """
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= MAX_WAITING:
            raise QueueFullError(
                f"{MAX_WAITING} calls that read wait already", hint="read less at a time"
            )
        place = asyncio.get_running_loop().create_future()
        waiting.append(place)
        self._give_places()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._give_places()  # forgets it
            else:
                self._give_back(key, 0.0)
            raise
        return Turn(self, key)

    def _give_back(self, key: str, seconds: float) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if self._rests:
            self._rested_at[key] = asyncio.get_running_loop().time() + seconds
        self._give_places()

    def _give_places(self) -> None:
        now = asyncio.get_running_loop().time()
        self._rested_at = {key: time for key, time in self._rested_at.items() if time > now}
        while (key := self._next()) is not None:
            waiting = self._waiting.pop(key)
            waiting.popleft().set_result(None)
            self._held[key] += 1
            self._waiting[key] = waiting  # after all others
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if resting := [self._rested_at[key] for key in self._waiting if key in self._rested_at]:
            self._waking = asyncio.get_running_loop().call_at(min(resting), self._give_places)

    def _next(self) -> str | None:
        """The key whose turn it is, if any may have one."""
        for key, waiting in list(self._waiting.items()):
            while waiting and waiting[0].cancelled():
                waiting.popleft()
            if not waiting:
                del self._waiting[key]
        if self._at_once is not None and self._held.total() >= self._at_once:
            return None
        for key in self._waiting:
            if self._held[key] < self._of_one_key and key not in self._rested_at:
                return key
        return None


class Turn:
    """One call's place, until ``end``."""

    def __init__(self, turns: Turns, key: str) -> None:
        self._turns: Turns | None = turns
        self._key = key
        self._began = asyncio.get_running_loop().time()

    def end(self) -> None:
        """Give the place back; harmless when repeated."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns._give_back(self._key, asyncio.get_running_loop().time() - self._began)
