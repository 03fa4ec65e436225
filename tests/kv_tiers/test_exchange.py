"""Protects: blocks that one engine offers reach another whole, or its load fails at once."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.running import wait_until
from twostroke.core.errors import ConfigError
from twostroke.core.network.address import Address, bind, is_address
from twostroke.core.network.proofs import prove
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers import block_greeting as greeting_module
from twostroke.kv_tiers import outbox as outbox_module
from twostroke.kv_tiers import peer_tier as peer_module
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_greeting import (
    ASKER,
    GIVER,
    MAGIC,
    MAX_KIND_BYTES,
    greet_giver,
    welcome_asker,
)
from twostroke.kv_tiers.block_wire import MAX_KEYS, WireError
from twostroke.kv_tiers.outbox import Outbox
from twostroke.kv_tiers.peer_tier import Peers, PeerTier

SIZE = 1 << 18  # more than a socket takes at once
KIND = BlockKind("model@1", "k v", 16, SIZE)
TOKEN = b"a token of 23 characters"


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> memoryview:
    return memoryview(bytes([number % 251]) * SIZE)


def offering(
    place: str, kind: BlockKind = KIND, num_blocks: int = 8, token: bytes = TOKEN
) -> Outbox:
    info = TierInfo(name="offered", num_blocks=num_blocks, block_bytes=SIZE, saves_filled=True)
    return Outbox(info, place, kind, token)


def listen_at(place: str) -> socket.socket:
    listener = bind(Address.parse(place)) if is_address(place) else socket.socket(socket.AF_UNIX)
    if listener.family == socket.AF_UNIX:
        listener.bind(place)
    listener.listen()
    return listener


def connect_to(place: str) -> socket.socket:
    if is_address(place):
        return socket.create_connection(Address.parse(place))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    return connection


@pytest.fixture(params=["unix", "tcp"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "unix":
        return str(tmp_path / "blocks")
    with bind(Address("127.0.0.1", 0)) as free:
        return str(Address(*free.getsockname()))


@pytest.fixture
def offered(place: str) -> Iterator[Outbox]:
    tier = offering(place)
    yield tier
    tier.close()
    assert not Path(place).exists()


@pytest.fixture
def peer(place: str) -> Iterator[PeerTier]:
    info = TierInfo(name="peer0", num_blocks=0, block_bytes=SIZE, loads_only=True)
    tier = PeerTier(info, place, KIND, threading.Event(), TOKEN)
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
    place: str, peer: PeerTier
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
    place: str, peer: PeerTier
) -> None:
    with listen_at(place) as listener:
        peer.load("a", [key(1), key(2)])
        connection, _ = listener.accept()
        with connection:
            welcome_asker(connection, TOKEN, KIND)
            connection.recv(64)
            connection.sendall(SIZE.to_bytes(4, "little") + b"x" * 1000)
    assert [each.data for each in arrivals(peer, 2)] == [None, None]
    Path(place).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (KIND._replace(model="model@2"), "another model, precision or kind of processor"),
        (KIND._replace(format="k8 v8"), r"another format \(--kv-cache-dtype.*: k v, not k8 v8"),
        (KIND._replace(block_size=32), "another --block-size: 16, not 32"),
        (KIND._replace(payload_bytes=SIZE // 2), "another size of a block"),
        (KIND._replace(key_bytes=17), "another length of keys"),
    ],
)
def test_blocks_of_another_kind_are_refused_by_name(
    place: str, peer: PeerTier, other: BlockKind, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier = offering(place, other)
    tier.save(key(1), block(1))
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data is None
    wait_until(lambda: len(caplog.records) == 2)  # the giver says it on a thread of its own
    tier.close()
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 2 and all(re.search(what, each) for each in told), told


def test_one_that_does_not_know_the_token_gets_nothing(
    place: str, peer: PeerTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier = offering(place, token=b"another token of that length")
    tier.save(key(1), block(1))
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data is None
    wait_until(lambda: len(caplog.records) == 2)
    tier.close()
    assert caplog.text.count("another token") == 2 and TOKEN.decode() not in caplog.text


def test_one_that_gives_must_know_it_too(place: str, peer: PeerTier) -> None:
    """It has only seen what a real one says."""
    with listen_at(place) as listener:
        peer.load("a", [key(1)])
        connection, _ = listener.accept()
        with connection:
            connection.sendall(MAGIC + bytes(32))
            connection.recv(4096)
            connection.sendall(b"\x01" + prove(b"", GIVER, bytes(32), bytes(32)))
            assert arrivals(peer, 1)[0].data is None
    Path(place).unlink(missing_ok=True)


def test_one_that_stops_in_the_middle_is_left_and_not_asked_again_at_once(
    place: str, peer: PeerTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "FETCH_SECONDS", 0.3)
    with listen_at(place) as listener:
        peer.load("a", [key(1)])
        connection, _ = listener.accept()
        with connection:
            welcome_asker(connection, TOKEN, KIND)
            connection.sendall(SIZE.to_bytes(4, "little") + b"x" * 1000)
            began = time.monotonic()
            assert arrivals(peer, 1)[0].data is None
            assert 0.2 < time.monotonic() - began < 2
        began = time.monotonic()
        peer.load("b", [key(1)])
        assert arrivals(peer, 1)[0].data is None
        assert time.monotonic() - began < 0.2
    Path(place).unlink(missing_ok=True)


def test_half_a_greeting_ends_in_time_and_holds_nobody_up(
    place: str, offered: Outbox, peer: PeerTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do many that say nothing; one byte now and then is no sign of life."""
    monkeypatch.setattr(greeting_module, "GREETING_SECONDS", 1.0)
    offered.save(key(1), block(1))
    slow = connect_to(place)
    silent = [connect_to(place) for _ in range(40)]
    began = time.monotonic()
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)
    assert len(offered._greeted) <= outbox_module.MAX_GREETED
    with suppress(OSError):
        while time.monotonic() - began < 5:
            slow.sendall(b"2")
            time.sleep(0.05)
    assert time.monotonic() - began < 3
    for each in (slow, *silent):
        each.close()


def test_what_a_refusal_says_is_one_line(place: str) -> None:
    """It has proven nothing."""
    with listen_at(place) as listener, connect_to(place) as asker:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(MAGIC + bytes(32) + b"\x00\x06\x00a\nb\x1b[1")
            with pytest.raises(WireError, match=r"^a b \[1$"):
                greet_giver(asker, TOKEN, KIND)


def test_a_peer_is_opened_by_its_address() -> None:
    info = TierInfo(name="peers", num_blocks=0, block_bytes=SIZE, loads_only=True, by_address=True)
    wake = threading.Event()
    with_blocks = offering("127.0.0.1:0")
    with_blocks.save(key(1), block(1))
    tier = Peers(info, KIND, wake, TOKEN).open(with_blocks.info.place)
    assert tier.info.name == with_blocks.info.place and not tier.info.by_address
    tier.load("a", [key(1)])
    assert arrivals(tier, 1)[0].data == block(1)
    tier.close()
    with_blocks.close()


@pytest.mark.parametrize(
    ("is_welcome", "sent"),
    [
        (False, b"GET / HTTP/1.1\r\n\r\n" * 10),
        (False, MAGIC + b"?" * 64),
        (True, b"\x00\x00"),
        (True, (MAX_KEYS + 1).to_bytes(2, "little")),
        (True, b"\x01\x00\x10short"),
    ],
)
def test_nonsense_ends_its_own_connection_alone(
    place: str, offered: Outbox, peer: PeerTier, is_welcome: bool, sent: bytes
) -> None:
    offered.save(key(1), block(1))
    with connect_to(place) as stranger:
        if is_welcome:
            greet_giver(stranger, TOKEN, KIND)
        stranger.sendall(sent)
        with suppress(OSError):  # it has hung up already
            stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        with suppress(ConnectionResetError):  # what it had not read
            while stranger.recv(64):
                pass
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)


@pytest.mark.parametrize(
    "described",
    [b"[" * 4000, b"\xff\xfe", b"{}", b"[1]", b"null", b"x" * (MAX_KIND_BYTES + 1)],
)
def test_what_describes_no_kind_is_refused(
    place: str, offered: Outbox, peer: PeerTier, described: bytes
) -> None:
    offered.save(key(1), block(1))
    with connect_to(place) as stranger:
        stranger.settimeout(5)
        theirs = stranger.recv(40, socket.MSG_WAITALL)[8:]
        hello = MAGIC + bytes(32) + prove(TOKEN, ASKER, theirs, bytes(32))
        stranger.sendall(hello + len(described).to_bytes(2, "little") + described)
        with suppress(ConnectionResetError):  # what it had not read
            assert stranger.recv(1) in (b"", b"\x00")
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)


def test_a_place_where_it_cannot_listen_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be offered at .*/nowhere/blocks"):
        offering(str(tmp_path / "nowhere" / "blocks"))
    with listen_at("127.0.0.1:0") as taken, pytest.raises(ConfigError) as refused:
        offering(str(Address(*taken.getsockname())))
    assert "--kv-listen" in (refused.value.hint or "")


def test_it_goes_on_to_give_after_too_many_files_were_open(
    place: str, offered: Outbox, peer: PeerTier, caplog: pytest.LogCaptureFixture
) -> None:
    offered.save(key(1), block(1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    asker = socket.socket(socket.AF_INET if is_address(place) else socket.AF_UNIX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # no more than there are
    try:
        asker.connect(Address.parse(place) if is_address(place) else place)
        wait_until(lambda: "cannot be accepted" in caplog.text)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        asker.close()
    peer.load("a", [key(1)])
    assert arrivals(peer, 1)[0].data == block(1)
