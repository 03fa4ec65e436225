"""Protects: only a front end that knows the token gets in, one at a time; noise harms nobody."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.engine.process.scripted_process import call, tokens_of, undisturbed, until
from tests.engine.workers.routed import routed
from tests.engine.workers.scripted_worker import TOKEN, VERSION, worker_on_thread
from twostroke.core.errors import ConfigError, EngineDeadError, ErrorMessage, TwostrokeError
from twostroke.core.network.address import Address, bind
from twostroke.core.network.proofs import is_proof, prove, read_token
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.engine.process.handshake import EngineRefused
from twostroke.engine.workers import listener
from twostroke.engine.workers.connect import WorkerLink, connect_worker, first_worker
from twostroke.engine.workers.greeting import PROTOCOL, Challenge, FrontEndGreeting, Welcome
from twostroke.engine.workers.run_worker import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch, worker_on_thread() as running:
        patch.setenv("TWOSTROKE_TEST_HUNG", "/nowhere")
        yield running


def let_in(worker: Worker) -> tuple[WorkerLink, Welcome]:
    """A front end that gets in, once the one before is gone."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return connect_worker(worker.address, TOKEN, VERSION)
        except EngineDeadError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def still_serves(worker: Worker) -> None:
    let_in(worker)[0].close()


@pytest.mark.parametrize(
    ("token", "version", "message"),
    [
        (b"another token of that length", VERSION, "has another token than this worker"),
        (b"", VERSION, "has another token than this worker"),
        (TOKEN, "0.0.1", "the front end is twostroke 0.0.1, this worker scripted"),
    ],
)
def test_strangers_are_refused_by_name(
    worker: Worker, token: bytes, version: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigError, match=f"worker {worker.address} refuses: .*{message}"):
        connect_worker(worker.address, token, version)
    with pytest.raises(ConfigError, match=message):
        first_worker([worker.address], token, version, print)
    assert message in caplog.text
    assert TOKEN.decode() not in caplog.text and (not token or token.decode() not in caplog.text)
    still_serves(worker)


def test_one_front_end_at_a_time(worker: Worker) -> None:
    link, _ = let_in(worker)
    with pytest.raises(EngineDeadError, match="serves another front end, 127"):
        connect_worker(worker.address, TOKEN, VERSION)
    link.close()
    still_serves(worker)


def of_bytes(message: bytes) -> bytes:
    """What crosses: a message after its length."""
    return len(message).to_bytes(4, "little") + message


NO_TEXT = of_bytes(
    msgspec.msgpack.encode(FrontEndGreeting(PROTOCOL, "text", b"", b"", 0.0)).replace(
        b"text", b"\xff\xfe\xff\xfe"
    )
)
NESTED = of_bytes(b"\x82\xa4type\xb0FrontEndGreeting\xa1x" + b"\x91" * 4000 + b"\xc0")
GREETING = FrontEndGreeting(PROTOCOL, VERSION, bytes(32), bytes(32), 0.0)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "542393671 bytes was announced"),
        (b"\xff\xff\xff\xff", "4294967295 bytes was announced"),
        ((5000).to_bytes(4, "little") + bytes(5000), "5000 bytes was announced, and 4096"),
        (encode_frame({"type": "Nothing"}), "no greeting of a front end"),
        (encode_frame(b"\x00"), "no greeting of a front end"),
        (NO_TEXT, "no greeting of a front end"),
        (NESTED, "no greeting of a front end"),
        (encode_frame(msgspec.structs.replace(GREETING, protocol=99)), "greets by protocol 99"),
        (encode_frame(msgspec.structs.replace(GREETING, nonce=b"")), "another token"),
        (encode_frame(GREETING), "another token"),
    ],
)
def test_noise_is_answered_and_harms_nobody(worker: Worker, sent: bytes, message: str) -> None:
    with socket.create_connection(worker.address) as connection:
        connection.settimeout(5)
        assert receive_frame(connection) is not None  # the challenge
        connection.sendall(sent)
        data = receive_frame(connection)
        assert data is not None
        refused = msgspec.msgpack.decode(data, type=EngineRefused)
        assert message in refused.error.message
        assert connection.recv(1) == b""
    still_serves(worker)


def test_half_a_greeting_holds_up_nobody_and_is_hung_up_on(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GREETING_SECONDS", 2.0)
    silent = socket.create_connection(worker.address)
    half = socket.create_connection(worker.address)
    half.sendall(encode_frame(GREETING)[:20])
    began = time.monotonic()
    still_serves(worker)
    assert time.monotonic() - began < 2.0, "they hold up nobody"
    for connection in (silent, half):
        connection.settimeout(5)
        assert receive_frame(connection) is not None
        data = receive_frame(connection)
        assert data is not None and b"did not say who it is" in data
        connection.close()


def test_of_too_many_the_oldest_are_hung_up_on(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever connects and says nothing keeps no router out."""
    deadline = time.monotonic() + 10
    while worker._listener._greeted:  # of the tests before
        assert time.monotonic() < deadline
        time.sleep(0.01)
    silent = [socket.create_connection(worker.address) for _ in range(60)]
    newest = silent[-listener.MAX_GREETED_AT_ONCE :]
    for connection in newest:
        connection.settimeout(5)
        assert receive_frame(connection) is not None
    assert len(worker._listener._greeted) == len(newest)
    for connection in silent[: -len(newest)]:
        connection.settimeout(5)
        while connection.recv(2**12):
            pass
    still_serves(worker)
    assert caplog.text.count("are hung up") == 1 and "did not say who it is" not in caplog.text
    for connection in silent:
        connection.close()


def test_a_thread_that_cannot_be_started_ends_one_connection_alone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(EngineDeadError):
        connect_worker(worker.address, TOKEN, VERSION)
    assert "cannot be greeted" in caplog.text
    still_serves(worker)


def test_a_taken_port_is_named_before_anything_is_loaded(worker: Worker) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {worker.address}: .* in use"):
        listener.listen_on(worker.address, TOKEN, VERSION)
    with bind(Address("127.0.0.1", 0)) as bound:  # as long as neither listens, both are bound
        address = Address(*bound.getsockname())
        second = bind(address)
        bound.listen()
        with pytest.raises(OSError, match="in use"):
            listener.WorkerListener(second, TOKEN, VERSION)
        second.close()


def test_until_the_model_is_there_nobody_is_let_in() -> None:
    loading = listener.listen_on(Address("127.0.0.1", 0), TOKEN, VERSION)
    with pytest.raises(EngineDeadError, match="refuses: the worker is loading its model"):
        connect_worker(loading.address, TOKEN, VERSION)
    with pytest.raises(ConfigError, match="another token"):
        connect_worker(loading.address, b"another token of that length", VERSION)
    loading.close()


async def test_what_cannot_be_read_after_the_greeting_ends_that_connection(worker: Worker) -> None:
    for noise in (encode_frame({"type": "Nothing"}), b"\xff\xff\xff\xff", encode_frame(GREETING)):
        link, _ = let_in(worker)
        link._socket.setblocking(True)
        link._socket.sendall(noise)
        while link._socket.recv(2**16):
            pass
        link.close()
    await until(lambda: worker._front_end is None)
    with routed([worker.address]) as replicas:
        assert await tokens_of(replicas.submit(call("a"))) == await undisturbed(call("a"))


@contextmanager
def answering(*messages: object) -> Iterator[Address]:
    """What listens like a worker, and says this to each front end."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            for each in messages:
                connection.sendall(each if isinstance(each, bytes) else encode_frame(each))
                connection.recv(2**16)

    thread = threading.Thread(target=serve)
    thread.start()
    yield Address(*server.getsockname())
    thread.join(10)
    server.close()


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "is no worker of twostroke"),
        ([{"type": "Nothing"}], "is no worker of twostroke"),
        ([Challenge(99, bytes(32))], "greets by protocol 99, this router by"),
        ([], "does not answer"),
        ([Challenge(PROTOCOL, bytes(32)), b"\xff\xff\xff\xff"], "is no worker of twostroke"),
        ([NO_TEXT], "is no worker of twostroke"),
        ([Challenge(PROTOCOL, bytes(32)), NESTED], "is no worker of twostroke"),
    ],
)
def test_what_is_no_worker_is_named(messages: list[object], message: str) -> None:
    with answering(*messages) as address, pytest.raises(TwostrokeError, match=message):
        connect_worker(address, TOKEN, VERSION)


def test_a_refusal_is_one_line_of_bounded_length() -> None:
    """Whoever says it has proven nothing."""
    error = ErrorMessage("EngineDeadError", "A\nforged line \x1b[1m" * 10000, hint="B\n" * 10000)
    with (
        answering(Challenge(PROTOCOL, bytes(32)), EngineRefused(error)) as address,
        pytest.raises(EngineDeadError, match="refuses: A forged line") as refused,
    ):
        connect_worker(address, TOKEN, VERSION)
    for text in (refused.value.message, str(refused.value.hint)):
        assert text.isprintable() and len(text) < 600


def test_a_worker_must_know_the_token_too(worker: Worker) -> None:
    """What has only seen a real worker's welcome cannot say it again."""
    link, welcome = let_in(worker)
    link.close()
    with (
        answering(Challenge(PROTOCOL, bytes(32)), welcome) as address,
        pytest.raises(ConfigError, match="does not know the token"),
    ):
        connect_worker(address, TOKEN, VERSION)
    still_serves(worker)


def test_proofs_are_of_one_connection_and_one_side() -> None:
    ours, theirs = os.urandom(32), os.urandom(32)
    proof = prove(TOKEN, "worker", ours, theirs)
    assert is_proof(proof, TOKEN, "worker", ours, theirs)
    for given, token, side, worker, front_end in (
        (proof[:-1], TOKEN, "worker", ours, theirs),
        (proof, TOKEN + b"x", "worker", ours, theirs),
        (proof, TOKEN, "front end", ours, theirs),
        (proof, TOKEN, "worker", theirs, ours),
        (proof, TOKEN, "worker", ours + theirs[:1], theirs[1:]),
        (prove(TOKEN, "worker", b"", b""), TOKEN, "worker", b"", b""),
    ):
        assert not is_proof(given, token, side, worker, front_end)


def test_tokens_come_from_files(tmp_path: Path) -> None:
    assert read_token(None) == b""
    file = tmp_path / "token"
    file.write_bytes(b"  0123456789abcdef\n")
    assert read_token(str(file)) == b"0123456789abcdef"
    file.write_bytes(b"0123456789abcde\n")
    with pytest.raises(ConfigError, match="has 15 bytes, and needs 16"):
        read_token(str(file))
    with pytest.raises(ConfigError, match="cannot read --token-file"):
        read_token(str(tmp_path / "none"))


def test_an_address_that_nobody_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())
    with pytest.raises(EngineDeadError, match=f"worker {address} cannot be reached"):
        connect_worker(address, TOKEN, VERSION)
    assert WorkerLink.ended(address).wait(0)
