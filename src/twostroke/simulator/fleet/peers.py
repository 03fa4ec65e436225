"""What decode replicas fetch from prefill replicas, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from twostroke.core.kv_tier_config import peer_name
from twostroke.kv_cache.connector import TierInfo

# One tier for the blocks of all prefill replicas: requests say which of them has theirs.
PEERS = peer_name(0)


@dataclass(slots=True)
class Sender:
    """A replica's end of the link, which sends to one other at a time.

    Attributes:
        free: When all that it was asked for has been sent.
        died: When it died; what had not been sent by then is lost.
    """

    free: float = 0.0
    died: float = inf


class Link(NamedTuple):
    """What moving blocks takes: ``block_seconds`` each, after ``latency`` seconds."""

    block_seconds: float
    latency: float


class Offer(NamedTuple):
    """A prompt's blocks at a sender.

    Attributes:
        num_blocks: All of them.
        parts: Before the last step: when one ended, and how many were there. These have been asked
            for since then.
    """

    sender: Sender
    num_blocks: int = 0
    parts: Sequence[tuple[float, int]] = ()


class Transfer(NamedTuple):
    """A load under way. ``seconds`` is what its blocks take, without latency and waiting."""

    arrives: float
    seconds: float
    sender: Sender


class SimulatedPeers:
    """A decode replica's end of the link, which gets from one other at a time.

    What it is offered stays in its sender's host memory, however much that is.
    """

    def __init__(self, link: Link, num_blocks: int, block_bytes: int) -> None:
        self.info = TierInfo(
            name=PEERS, num_blocks=num_blocks, block_bytes=block_bytes, loads_only=True
        )
        self._link = link
        self._free = 0.0
        self._offers: dict[str, Offer] = {}

    def expect(self, request_id: str, offer: Offer) -> None:
        """Blocks of a request that is about to be added are elsewhere."""
        self._offers[request_id] = offer

    def forget(self, request_id: str) -> None:
        """The request needs no more of them."""
        self._offers.pop(request_id, None)

    def begin(self, request_id: str, num_blocks: int, now: float) -> Transfer | None:
        """Ask for the last blocks of a prompt; ``None`` if their sender has died."""
        sender, total, parts = self._offers[request_id]
        if sender.died <= now:
            return None
        each, free, rest = self._link.block_seconds, max(self._free, sender.free), num_blocks
        for time, num_filled in parts:  # what came while later parts were computed
            count = max(num_filled - (total - rest), 0)
            free, rest = max(free, time) + count * each if count else free, rest - count
        self._free = sender.free = max(now, free) + rest * each
        return Transfer(self._free + self._link.latency, num_blocks * each, sender)
