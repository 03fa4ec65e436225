"""Protects: blocks that cross by NIXL come whole, or their load fails in time."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.kv_tiers.test_exchange import KIND, SIZE, TOKEN, arrivals, block, key
from twostroke.core.errors import ConfigError
from twostroke.core.network.address import Address
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_tiers import nixl_channel as module
from twostroke.kv_tiers.block_greeting import KindRefusedError, greet_giver
from twostroke.kv_tiers.block_wire import WireError
from twostroke.kv_tiers.nixl_channel import NixlChannel, NixlReader
from twostroke.kv_tiers.outbox import Outbox
from twostroke.kv_tiers.peer_tier import PeerTier

OFFERED = TierInfo(name="offered", num_blocks=64, block_bytes=SIZE, saves_filled=True)
GIVER = """
import time
from tests.kv_tiers.test_exchange import KIND, SIZE, TOKEN, block, key
from tests.kv_tiers.test_nixl import OFFERED
from twostroke.kv_tiers.nixl_channel import NixlChannel
from twostroke.kv_tiers.outbox import Outbox
tier = Outbox(OFFERED, "127.0.0.1:0", KIND, TOKEN, NixlChannel())
for number in range(40):
    tier.save(key(number), block(number))
print(tier.info.place, flush=True)
time.sleep(600)
"""


needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")


@pytest.fixture(scope="module")
def channel() -> NixlChannel:
    return NixlChannel()


@pytest.fixture
def giver() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process that has blocks 0 to 39."""
    process = subprocess.Popen([sys.executable, "-c", GIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip(), process  # to which NIXL writes nothing
    process.kill()
    process.wait()
    process.stdout.close()


def peer_at(place: str, channel: NixlChannel) -> PeerTier:
    info = TierInfo(name="peer0", num_blocks=0, block_bytes=SIZE, loads_only=True)
    return PeerTier(info, place, KIND, threading.Event(), TOKEN, channel)


@needs_nixl
@pytest.mark.parametrize("window", [1, SIZE * 3, SIZE * 100])
def test_blocks_come_in_order_and_whole(
    giver: tuple[str, subprocess.Popen[str]],
    channel: NixlChannel,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However few the window takes."""
    monkeypatch.setattr(module, "WINDOW_BYTES", window)
    peer = peer_at(giver[0], channel)
    asked = [*range(0, 40, 2), 77, *range(1, 40, 2)]
    peer.load("a", [key(number) for number in asked])
    peer.load("b", [key(3)])
    came = arrivals(peer, 42, 30)
    assert [each.key for each in came] == [*(key(number) for number in asked), key(3)]
    for each, number in zip(came, [*asked, 3], strict=True):
        assert each.data == (None if number == 77 else block(number))
    peer.close()


@needs_nixl
def test_a_giver_that_is_killed_fails_its_loads_in_time(
    giver: tuple[str, subprocess.Popen[str]],
    channel: NixlChannel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, process = giver
    peer = peer_at(place, channel)
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)
    read = NixlReader._read

    def kill_first(reader: NixlReader, there: list[int]) -> None:
        process.kill()
        process.wait()
        read(reader, there)

    monkeypatch.setattr(NixlReader, "_read", kill_first)
    began = time.monotonic()
    peer.load("b", [key(number) for number in range(30)])
    assert not any(each.data for each in arrivals(peer, 30, 30))
    assert time.monotonic() - began < module.READ_SECONDS + 5
    peer.close()


@needs_nixl
def test_what_a_giver_announces_is_checked(channel: NixlChannel) -> None:
    for head in (
        module._WINDOW.pack(0, 0, 5) + b"12345",
        module._WINDOW.pack(0, 4, module.MAX_METADATA + 1),
        module._WINDOW.pack(0, 4, 5) + b"12345",
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(head)
            with pytest.raises(WireError):
                channel.reader(ours, SIZE)


class SlowAgent:
    """What a reader asks of NIXL, where a transfer does not end before it is let."""

    may_release = has_memory = False

    def __init__(self) -> None:
        self.freed = self.forgotten = 0

    def counts(self) -> tuple[int, int]:
        """Windows that were freed, and givers that were forgotten."""
        return self.freed, self.forgotten

    def add_remote_agent(self, metadata: bytes) -> str:
        return "giver"

    def remove_remote_agent(self, name: str) -> None:
        self.forgotten += 1

    def register_memory(self, regions: list[object], kind: str) -> str:
        if not self.has_memory:
            raise RuntimeError("there is no memory")
        return "registered"

    def deregister_memory(self, registered: str) -> None:
        self.freed += 1

    def get_xfer_descs(self, regions: list[object], kind: str) -> list[object]:
        return regions

    def initialize_xfer(self, *given: object) -> str:
        return "handle"

    def transfer(self, handle: str) -> str:
        return "PROC"

    check_xfer_state = transfer

    def release_xfer_handle(self, handle: str) -> None:
        if not self.may_release:
            raise RuntimeError("it is under way")


def test_what_nixl_may_write_to_yet_is_kept_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after the connection, of which nothing is left. Without NIXL, which is never so slow."""
    monkeypatch.setattr(module, "READ_SECONDS", 0.05)
    agent = SlowAgent()
    late = module.LateReads(agent)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(2 * (module._WINDOW.pack(4096, 4, 5) + b"12345") + b"\x01")
        with pytest.raises(WireError, match="no memory"):
            NixlReader(agent, ours, SIZE, late)
        assert agent.counts() == (0, 1)
        agent.has_memory = True
        reader = NixlReader(agent, ours, SIZE, late)
        window = weakref.ref(reader._window)
        with pytest.raises(TimeoutError):
            list(reader.fetch([key(1)]))
        reader.close()
    del reader
    late.let_go()
    assert window() is not None and agent.counts() == (0, 2)
    agent.may_release = True
    late.let_go()
    assert window() is None and agent.counts() == (1, 2)


def test_the_two_sides_must_go_the_same_way() -> None:
    tier = Outbox(OFFERED, "127.0.0.1:0", KIND, TOKEN)
    with socket.create_connection(Address.parse(tier.info.place)) as connection:
        refusal = "its --kv-transfer is another: nixl, not tcp"
        with pytest.raises(KindRefusedError, match=refusal):
            greet_giver(connection, TOKEN, KIND, "nixl")
    tier.close()


def test_without_nixl_the_flag_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(ConfigError, match="--kv-transfer nixl: NIXL is not installed") as caught:
        NixlChannel()
    assert caught.value.hint is not None and "twostroke[nixl]" in caught.value.hint
