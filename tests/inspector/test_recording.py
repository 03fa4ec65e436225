"""Protects: a recording is shown as it was written, wherever one looks, and bad files say so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inspector.recorded import events, recording
from twostroke.core.errors import ConfigError
from twostroke.inspector.recording import MAX_DECODED, Recording
from twostroke.inspector.source import Fit, FrameLimits
from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import MAX_SHARES, MAX_STEPS, StepFrame, encode_steps
from twostroke.observability.frames.visibility import Visibility


@pytest.fixture(scope="module")
def source() -> Iterator[Recording]:
    opened = Recording(recording())
    assert opened.wait_until_read(20)
    yield opened
    opened.close()


def frame(source: Recording, begin: int, end: int) -> StepFrame:
    return asyncio.run(source.frame(begin, end, None, FrameLimits(MAX_STEPS, MAX_SHARES)))


def test_any_range_equals_the_events_of_the_file(source: Recording) -> None:
    for begin, end in ((0, 1), (17, 60), (0, len(events())), (len(events()) - 3, 10**9)):
        assert frame(source, begin, end) == encode_steps(events()[begin:end])


def test_the_moment_is_never_merged(source: Recording) -> None:
    """The page fills its store by these: a merged step would be no step of the engine's."""

    def fitting(fit: Fit) -> StepFrame:
        return asyncio.run(source.frame(10, 200, None, FrameLimits(4096, 100, fit)))

    assert fitting("merge").merged > 1
    first, last = fitting("first"), fitting("last")
    assert first.merged == last.merged == 1
    assert (first.steps.step[0], last.steps.step[-1]) == (10, 199)
    assert 80 < len(first.shares.row) <= 100
    assert 80 < len(last.shares.row) <= 100


def test_description_gives_the_bounds(source: Recording) -> None:
    found, last = source.describe(), events()[-1]
    assert (found.first_step, found.last_step, found.ready) == (0, last.step, 1.0)
    assert found.last_time == last.time + last.duration
    assert found.block_size == 16
    assert found.clock_origin == 0.0


def test_the_step_at_a_time(source: Recording) -> None:
    middle = events()[40]
    assert source.step_at(middle.time) == 40
    assert source.step_at(middle.time + middle.duration / 2) == 40
    assert source.step_at(-1.0) == 0


@pytest.mark.parametrize("step", [0, 30, 111, 10**9])
def test_state_equals_a_replay_of_all_steps_before(source: Recording, step: int) -> None:
    """The naive way: go through every step up to there."""
    started: dict[str, int] = {}
    outputs: dict[str, int] = {}
    computed: dict[str, int] = {}
    ended: set[str] = set()
    for event in events()[: step + 1]:
        started |= {s.request_id: s.num_prompt_tokens for s in event.started}
        for share in event.scheduled:
            outputs[share.request_id] = outputs.get(share.request_id, 0) + share.num_new_tokens
            computed[share.request_id] = share.start + share.num_tokens
        ended |= {finished.request_id for finished in event.finished}
    state = asyncio.run(source.state(step))
    running = {request.request_id: request for request in state.running}
    assert running.keys() == started.keys() - ended
    assert {request.request_id for request in state.ended} == ended
    for request_id, request in running.items():
        assert request.num_prompt_tokens == started[request_id]
        assert request.num_output_tokens == outputs[request_id]
        assert request.num_computed_tokens == computed[request_id]
    last = events()[min(step, len(events()) - 1)]
    assert len(state.running) == last.num_running
    # Of those that wait, the ones that came before the step began are counted by it as well.
    assert len(state.waiting) >= last.num_waiting


def test_what_is_wide_comes_from_the_overview(
    source: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twostroke.inspector.recording.MAX_DECODED", 20)
    wide = frame(source, 0, 10**9)
    assert sum(wide.steps.tokens) == sum(event.num_tokens for event in events())
    assert MAX_DECODED > 20


def test_unreadable_steps_do_not_shift_the_overview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = recording().read_bytes().splitlines(keepends=True)
    for row in range(20, 45):
        lines[row] = lines[row].replace(b'"duration":', b'"duration":"x","was":')
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr("twostroke.inspector.recording.MAX_DECODED", 20)
    monkeypatch.setattr("twostroke.inspector.recording.OVERVIEW_ROWS", len(lines) // 10)
    opened = Recording(path)
    assert opened.wait_until_read(20)
    wide = frame(opened, 100, 150)
    assert wide.first <= 100 < 149 <= wide.last < 165
    opened.close()


def test_a_wide_view_of_one_request_shows_no_other(
    source: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twostroke.inspector.recording.MAX_DECODED", 20)
    request_id = events()[5].scheduled[0].request_id
    shares = [s for event in events() for s in event.scheduled if s.request_id == request_id]
    only = Visibility(None, only=[request_id])
    wide = asyncio.run(source.frame(0, 10**9, only, FrameLimits(4096, 4096)))
    assert wide.ids == [request_id]
    assert wide.shares.tokens == [share.num_tokens for share in shares]


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    lines = recording().read_bytes().splitlines(keepends=True)
    path = tmp_path / "killed.jsonl"
    path.write_bytes(b"".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    opened = Recording(path)
    assert opened.describe().last_step == 4
    opened.close()


def test_the_last_of_two_engines_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_bytes(
        recording().read_bytes() + b"".join(recording().read_bytes().splitlines(True)[:9])
    )
    opened = Recording(path)
    assert opened.num_steps == 9
    opened.close()


def test_recordings_of_earlier_versions_show_prompts_too(tmp_path: Path) -> None:
    """Before ``started``, a request's prompt can be told from its parts."""
    path = tmp_path / "old.jsonl"
    kept = [event.to_dict() | {"started": []} for event in events()]
    path.write_bytes(b"".join(StepEvent.from_dict(values).to_json() + b"\n" for values in kept))
    opened = Recording(path)
    assert opened.wait_until_read(20)
    new = {s.request_id: s.num_prompt_tokens for event in events() for s in event.started}
    old = {r.request_id: r.num_prompt_tokens for r in asyncio.run(opened.state(None)).ended}
    assert old == new
    opened.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello\n", "line 1: no step event"),
        (b'{"step":1,"time":0.5,"dura', "holds no step event"),
        (b'{"step":1,"time":0.5,"duration":"x"}\n', "step 1 cannot be read"),
        (b'{"step":99999999999999999999,"time":0.5,"duration":1}\n', "holds no step event"),
    ],
)
def test_bad_files_are_refused_with_a_hint(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        Recording(path)
    assert caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Recording(tmp_path / "none.jsonl")


def test_a_pipe_and_an_endless_line_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: it must not be waited for
    with pytest.raises(ConfigError, match="cannot read"):
        Recording(tmp_path / "pipe")
    monkeypatch.setattr("twostroke.inspector.line_file.MAX_LINE", 100)
    with pytest.raises(ConfigError, match="a line is longer than"):
        Recording(recording())
