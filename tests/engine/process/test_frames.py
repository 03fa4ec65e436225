"""Protects: messages come whole out of a stream of bytes, wherever it was cut."""

from __future__ import annotations

import fcntl
import resource
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.errors import EngineError
from twostroke.engine.messages import ForgetRequest
from twostroke.engine.process.frames import MESSAGES, FrameCutter, encode_frame, has_come


@given(st.lists(st.text(max_size=300)), st.lists(st.integers(1, 200), min_size=1))
def test_messages_are_whole_wherever_the_stream_is_cut(names: list[str], sizes: list[int]) -> None:
    data = b"".join(encode_frame(ForgetRequest(name)) for name in names)
    cutter, decoder, received = FrameCutter(), MESSAGES, []
    start, number = 0, 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        received += [decoder.decode(frame) for frame in cutter.cut(data[start : start + size])]
        start, number = start + size, number + 1
    assert received == [ForgetRequest(name) for name in names]


def test_a_length_that_no_message_has_is_refused_at_once() -> None:
    with pytest.raises(EngineError, match="4294967295 bytes"):
        list(FrameCutter().cut(b"\xff\xff\xff\xff"))


def test_what_has_come_is_noticed_whatever_number_the_socket_has() -> None:
    """As in a server with more than a thousand clients."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2000:
        pytest.skip("fewer files may be open here")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1500)) as high:
        assert high.fileno() >= 1500
        assert not has_come(high, 0.01)
        theirs.sendall(b"x")
        assert has_come(high, 5)
        assert high.recv(1) == b"x"
        theirs.close()
        assert has_come(high, 5)
