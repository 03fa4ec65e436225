"""Protects: a fleet's file gives back what was written, and a wrong one says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.observability.fleet_file import (
    FleetRecorder,
    is_fleet_file,
    read_fleet_file,
)
from twostroke.observability.routes import RouteEvent, RouteReason

HEAD = '{"fleet":1,"router":"least-loaded","recordings":["a.0.jsonl","a.1.jsonl"]}\n'


def route(time: float, replica: int) -> RouteEvent:
    return RouteEvent(time=time, request_id="r", replica=replica, reason=RouteReason.TURN, load=3)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.fleet.jsonl"
    recorder = FleetRecorder(path, "least-loaded", [tmp_path / "a.0.jsonl", tmp_path / "a.1.jsonl"])
    for event in (route(2.0, 1), route(1.0, 0)):
        recorder.add(event)
    recorder.close()
    assert is_fleet_file(path)
    head, routes = read_fleet_file(path)
    assert (head.router, head.recordings) == ("least-loaded", ["a.0.jsonl", "a.1.jsonl"])
    assert routes == [route(1.0, 0), route(2.0, 1)]  # in order of time


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.fleet.jsonl"
    line = '{"time":1.0,"request_id":"r","replica":0,"reason":"turn"}'
    path.write_text(HEAD + line + "\n" + line)
    assert len(read_fleet_file(path)[1]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("no JSON\n", "line 1"),
        (HEAD.replace('"fleet":1', '"fleet":2'), "is of version 2, not 1"),
        (HEAD.replace("a.0.jsonl", "../a.0.jsonl"), "'../a.0.jsonl', which is no file of"),
        (HEAD.replace("a.0.jsonl", "/etc/passwd"), "'/etc/passwd', which is no file of"),
        (HEAD.replace("a.0.jsonl", ".."), "'..', which is no file of"),
        (HEAD.replace("a.0.jsonl", "a\\u0000b"), "which is no file of"),
        (HEAD.replace("a.0.jsonl", ""), "'', which is no file of"),
        (HEAD.replace('"a.0.jsonl","a.1.jsonl"', ""), "names 0 recordings"),
        (HEAD + '{"time":1.0,"request_id":"r","replica":2,"reason":"turn"}\n', "no replica 2"),
        (HEAD + '{"time":1.0,"request_id":"r","replica":0,"reason":"x"}\n', "line 2"),
        (HEAD + '{"time":"x"}\n', "line 2"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.fleet.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_fleet_file(path)
    assert message in str(error.value)
    assert error.value.hint


def test_other_files_are_none_of_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step":0,"time":0.0}\n')
    assert not is_fleet_file(path)
    assert not is_fleet_file(tmp_path / "missing")
