"""The recorder: a bounded ring, a file that survives trouble, readers beside the writer."""

from __future__ import annotations

import logging
import resource
import threading
from pathlib import Path

import pytest

from tests.observability.runs import make_run
from twostroke.core.errors import ConfigError
from twostroke.observability.events import StepEvent
from twostroke.observability.recorder import Recorder, read_jsonl


def event(step: int) -> StepEvent:
    return StepEvent(step=step, time=float(step), duration=1.0)


def test_ring_keeps_the_latest() -> None:
    recorder = Recorder(3)
    for step in range(5):
        recorder.add(event(step))
    assert [e.step for e in recorder.events()] == [2, 3, 4]
    assert [e.step for e in recorder.events(since=2)] == [3, 4]
    assert recorder.events(since=4) == []
    assert [e.step for e in recorder.events(since=0)] == [2, 3, 4]


def test_file_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = make_run()
    recorder = Recorder(1, path)
    for item in run:
        recorder.add(item)
    assert list(read_jsonl(path)) == run  # line by line, so before it is closed
    recorder.close()
    recorder.close()
    recorder.add(event(9))
    assert list(read_jsonl(path)) == run
    assert recorder.events() == [event(9)]


def test_recording_goes_on_after_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(event(0).to_json() + b"\n" + event(1).to_json()[:-9])
    assert [e.step for e in read_jsonl(path)] == [0]
    recorder = Recorder(1, path)
    recorder.add(event(2))
    recorder.close()
    assert [e.step for e in read_jsonl(path)] == [0, 2]


def test_trouble_with_the_file_warns_once_and_never_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither do the writes fail that closing tries once more."""
    path = tmp_path / "run.jsonl"
    recorder = Recorder(5, path)
    recorder.add(event(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with caplog.at_level(logging.WARNING):
            for step in range(1, 4):
                recorder.add(event(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recorder.add(event(4))
    assert [e.step for e in recorder.events()] == [0, 1, 2, 3, 4]
    assert len([r for r in caplog.records if "stopped" in r.message]) == 1
    assert [e.step for e in read_jsonl(path)] == [0]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Recorder(1, tmp_path / "nowhere" / "run.jsonl")
    assert caught.value.hint
    with pytest.raises(ConfigError):
        list(read_jsonl(tmp_path / "missing"))
    (tmp_path / "wrong").write_text("hello\n")
    with pytest.raises(ConfigError, match="line 1"):
        list(read_jsonl(tmp_path / "wrong"))


def test_readers_beside_a_writer() -> None:
    recorder, stop, failures = Recorder(64), threading.Event(), list[str]()

    def read() -> None:
        while not stop.is_set():
            steps = [e.step for e in recorder.events()]
            if steps != sorted(set(steps)):
                failures.append(str(steps))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for step in range(3000):
            recorder.add(event(step))
    finally:
        stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
