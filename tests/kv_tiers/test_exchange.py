"""Protects: blocks that one engine offers reach another whole, or its load fails at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers import outbox as outbox_module
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_wire import MAGIC, MAX_KEYS, hello_of
from twostroke.kv_tiers.outbox import Outbox
from twostroke.kv_tiers.peer_tier import PeerTier

SIZE = 1 << 18  # more than a socket takes at once
KIND = BlockKind("model@1", "k v", 16, SIZE)


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> memoryview:
    return memoryview(bytes([number % 251]) * SIZE)


def offering(path: Path, kind: BlockKind = KIND, num_blocks: int = 8) -> Outbox:
    info = TierInfo(name="offered", num_blocks=num_blocks, block_bytes=SIZE, saves_filled=True)
    return Outbox(info, path, kind)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@pytest.fixture
def offered(place: Path) -> Iterator[Outbox]:
    tier = offering(place)
    yield tier
    tier.close()
    assert not place.exists()


@pytest.fixture
def peer(place: Path) -> Iterator[PeerTier]:
    info = TierInfo(name="peer0", num_blocks=0, block_bytes=SIZE, loads_only=True)
    tier = PeerTier(info, place, KIND, threading.Event())
    yield tier
    began = time.monotonic()
    tier.close()
    assert time.monotonic() - began < 5 and not tier._thread.is_alive()


def arrivals(peer: PeerTier, count: int, seconds: float = 10) -> list[ArrivedBlock]:
    blocks: list[ArrivedBlock] = []
    end = time.monotonic() + seconds
    while len(blocks) < count and time.monotonic() < end:
        peer._wake.wait(0.01)
        peer._wake.clear()
        blocks += peer.arrived(2)
    assert len(blocks) == count
    return blocks


def test_blocks_come_in_order_and_whole(offered: Outbox, peer: PeerTier) -> None:
    for number in range(6):
        assert offered.save(key(number), block(number))
    peer.load("a", [key(4), key(0), key(2)])
    peer.load("b", [key(4)])
    came = arrivals(peer, 4)
    assert [(each.ticket, each.key) for each in came] == [
        ("a", key(4)),
        ("a", key(0)),
        ("a", key(2)),
        ("b", key(4)),
    ]
    for each, number in zip(came, (4, 0, 2, 4)):
        assert each.data == block(number)
    assert not peer.save(key(9), block(9))


def test_what_is_saved_just_after_it_was_asked_for_comes(offered: Outbox, peer: PeerTier) -> None:
    peer.load("a", [key(1)])
    time.sleep(0.05)
    offered.save(key(1), block(1))
    (came,) = arrivals(peer, 1)
    assert came.data == block(1)


def test_what_is_not_there_or_was_evicted_fails(
    offered: Outbox, peer: PeerTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "WAIT_SECONDS", 0.01)
    for number in range(9):  # one more than there is room for
        offered.save(key(number), block(number))
    peer.load("a", [key(0), key(8), key(77)])
    assert [each.data for each in arrivals(peer, 3)] == [None, block(8), None]
    assert set(peer.changes().removed) == {key(0), key(77)}


def test_many_that_are_not_there_cost_one_wait(offered: Outbox, peer: PeerTier) -> None:
    """And nobody else waits for more than that."""
    offered.save(key(1), block(1))
    began = time.monotonic()
    peer.load("a", [key(number) for number in range(100, 160)])
    peer.load("b", [key(1)])
    came = arrivals(peer, 61)
    assert came[-1].data == block(1) and not any(each.data for each in came[:-1])
    assert time.monotonic() - began < 5 * outbox_module.WAIT_SECONDS
    assert not any(each.seconds for each in came[:-1])


def test_a_peer_that_is_gone_fails_loads_and_one_that_is_back_serves(
    place: Path, peer: PeerTier
) -> None:
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data is None  # it was never there
    for _ in range(2):
        tier = offering(place)
        tier.save(key(1), block(1))
        peer.load("b", [key(1)])
        assert arrivals(peer, 1)[0].data == block(1)
        tier.close()
        peer.load("c", [key(1), key(1)])
        assert [each.data for each in arrivals(peer, 2)] == [None, None]


def test_one_that_ends_in_the_middle_of_a_block_fails_that_and_what_follows(
    place: Path, peer: PeerTier
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        peer.load("a", [key(1), key(2)])
        connection, _ = listener.accept()
        with connection:
            connection.recv(len(hello_of(KIND)))
            connection.sendall(b"\x01")
            connection.recv(64)
            connection.sendall(SIZE.to_bytes(4, "little") + b"x" * 1000)
    assert [each.data for each in arrivals(peer, 2)] == [None, None]
    place.unlink()


@pytest.mark.parametrize(
    "other",
    [
        KIND._replace(model="model@2"),
        KIND._replace(format="k8 v8"),
        KIND._replace(block_size=32),
        KIND._replace(payload_bytes=SIZE // 2),
    ],
)
def test_blocks_of_another_kind_are_refused(place: Path, peer: PeerTier, other: BlockKind) -> None:
    tier = offering(place, other)
    tier.save(key(1), block(1))
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data is None
    tier.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        MAGIC + b"?" * 32,
        hello_of(KIND) + b"\x00\x00",
        hello_of(KIND) + (MAX_KEYS + 1).to_bytes(2, "little"),
        hello_of(KIND) + b"\x01\x00\x10short",
    ],
)
def test_nonsense_ends_its_own_connection_alone(
    place: Path, offered: Outbox, peer: PeerTier, sent: bytes
) -> None:
    offered.save(key(1), block(1))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(place))
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        with suppress(ConnectionResetError):  # what it had not read
            while stranger.recv(64):
                pass
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)


def test_a_place_where_it_cannot_listen_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be offered at .*/nowhere/blocks"):
        offering(tmp_path / "nowhere" / "blocks")
