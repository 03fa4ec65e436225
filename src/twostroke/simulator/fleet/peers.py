"""What decode replicas fetch from prefill replicas, and the links between them."""

from __future__ import annotations

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
        self._senders: dict[str, Sender] = {}

    def expect(self, request_id: str, sender: Sender) -> None:
        """``sender`` has blocks of a request that is about to be added."""
        self._senders[request_id] = sender

    def forget(self, request_id: str) -> None:
        """The request needs no more of them."""
        self._senders.pop(request_id, None)

    def begin(self, request_id: str, num_blocks: int, now: float) -> Transfer | None:
        """Ask for blocks; ``None`` if their sender has died."""
        sender = self._senders[request_id]
        if sender.died <= now:
            return None
        begins = max(now, self._free, sender.free)
        seconds = num_blocks * self._link.block_seconds
        self._free = sender.free = begins + seconds
        return Transfer(begins + self._link.latency + seconds, seconds, sender)
