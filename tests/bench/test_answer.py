"""Protects: events have the time of the piece that ended them, wherever a body is cut."""

from __future__ import annotations

import msgspec
import pytest

from twostroke.bench.answer import EventReader, refusal
from twostroke.bench.metrics import RequestRecord

FIRST = 'data: {"choices": [{"text": "é…𝄞"}], "usage": null}\r\n\r\n'.encode()
SECOND = b'data: {"choices": [{"text": "\\n\\ndata: no event"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = b": ping\n\n" + FIRST + SECOND + USAGE + DONE


def read(*arrivals: tuple[float, bytes]) -> RequestRecord:
    """What becomes of an answer to a request that was sent at 100."""
    record = RequestRecord()
    reader = EventReader(record, 100.0)
    assert reader.feed(arrivals) == (record.error is None)
    reader.end()
    return record


def test_pieces_cut_anywhere() -> None:
    """In an event, in a character, at a line's end: the piece with the line's end counts."""
    ends = [BODY.index(b"\n", BODY.index(event)) for event in (FIRST, SECOND)]
    for cut in range(len(BODY) + 1):
        record = read((101.0, BODY[:cut]), (103.0, BODY[cut:]))
        assert (record.error, record.input_len, record.output_len, record.counted) == (
            None,
            3,
            2,
            True,
        ), cut
        first, second = (1.0 if cut > end else 3.0 for end in ends)
        assert (record.ttft, record.itls, record.e2el) == (first, [second - first], second), cut


def test_bytes_one_by_one_and_fed_one_by_one() -> None:
    first, second = (BODY.index(b"\n", BODY.index(event)) for event in (FIRST, SECOND))
    record = RequestRecord()
    reader = EventReader(record, 100.0)
    for index in range(len(BODY)):
        assert reader.feed([(100.0 + index, BODY[index : index + 1])])
    reader.end()
    assert record == RequestRecord(
        input_len=3, output_len=2, ttft=first, itls=[second - first], e2el=second, counted=True
    )


def test_events_of_one_piece_have_one_time() -> None:
    record = read((101.0, FIRST + SECOND), (102.0, SECOND + DONE))
    assert (record.itls, record.e2el, record.output_len) == ([0.0, 1.0], 2.0, 3)


def test_why_an_answer_ended_is_a_token_only_if_it_comes_by_itself() -> None:
    for reason in (
        b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n',
    ):
        assert read((101.0, FIRST), (102.0, SECOND + reason + DONE)).itls == [1.0]
        assert read((101.0, FIRST), (102.0, SECOND), (103.0, reason + DONE)).itls == [1.0, 1.0]


def test_a_last_line_that_is_not_ended_is_no_event() -> None:
    assert read((101.0, FIRST + b"data: [DONE]")).error == "the stream ended without [DONE]"


def test_nothing_counts_after_an_error() -> None:
    record = read(
        (101.0, FIRST + b'data: {"error": {"message": "boom"}}\n\n' + SECOND + DONE),
        (102.0, SECOND),
    )
    assert (record.error, record.itls) == ("in mid-stream: boom", [])
    with pytest.raises(msgspec.DecodeError):
        read((101.0, FIRST + b"data: {oops}\n\n"))


def test_refusals() -> None:
    assert refusal(429, b'{"error": {"message": "slow down"}}') == "HTTP 429: slow down"
    assert refusal(502, b"<html>\xff") == "HTTP 502: <html>\ufffd"
    assert refusal(500, b"") == "HTTP 500"
