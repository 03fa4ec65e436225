"""Protects: both sides replay the same requests by the engine's own scheduler."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.simulator.replay.test_fitted_cost import recorded
from twostroke.questions.replay import Failure, Replay, ReplayedRequest, ReplayJob, Settings, Side
from twostroke.simulator.replay.replay import replay

# Short and long answers in turn, a request each 30 ms, on an engine whose clock shows 5000.
REQUESTS = [
    ReplayedRequest(f"chat-{n}", 5000 + 0.03 * n, 40 + n, 8 if n % 2 else 60, 32 if n > 3 else 0)
    for n in range(16)
]


def job(other: Settings, recorded_as: Settings | None = None) -> ReplayJob:
    steps = recorded(80)
    ours = recorded_as or Settings(max_num_batched_tokens=512, max_num_seqs=4)
    return ReplayJob(REQUESTS, steps, ours, other, num_blocks=400, block_size=16)


def took(side: Side) -> list[float]:
    return [
        finish - request.arrival
        for finish, request in zip(side.finish, REQUESTS, strict=True)
        if finish is not None
    ]


def test_static_batches_begin_when_the_one_before_has_ended() -> None:
    static = Settings("static", 512, 4)
    answer = replay(job(static))
    assert len(took(answer.other)) == len(took(answer.recorded)) == len(REQUESTS)
    assert sum(took(answer.other)) > 1.2 * sum(took(answer.recorded))
    starts = {note.row: note.started for note in answer.other.frame.notes if note.started}
    for row in starts:
        running = answer.other.frame.steps.running[row - 1] if row else 0
        assert running == 0


def test_equal_settings_are_equal_runs() -> None:
    same = Settings(max_num_batched_tokens=512, max_num_seqs=4)
    answer = replay(job(same))
    assert answer.recorded == answer.other


def test_frames_have_the_recordings_ids_times_and_prefix_hits() -> None:
    frame = replay(job(Settings("static", 512, 4))).recorded.frame
    assert set(frame.ids) == {request.request_id for request in REQUESTS}
    assert frame.steps.time[0] == pytest.approx(5000, abs=0.01)
    started = [item for note in frame.notes for item in note.started]
    assert {item.request_id: item.num_cached_tokens for item in started} == {
        request.request_id: request.cached for request in REQUESTS
    }
    assert [item.arrival_time for item in started] == sorted(r.arrival for r in REQUESTS)


def test_smaller_chunks_are_more_steps_and_shorter_gaps() -> None:
    requests = [
        ReplayedRequest("reader", 0.0, 16, 200),
        ReplayedRequest("long prompt", 0.5, 4000, 2),
    ]
    whole = Settings(max_num_batched_tokens=8192)
    chunks = Settings(max_num_batched_tokens=8192, max_prefill_chunk=128)
    answer = replay(ReplayJob(requests, recorded(80), whole, chunks, 1000, 16))
    assert answer.other.longest_gap < 0.5 * answer.recorded.longest_gap
    assert max(answer.other.frame.steps.prompt) == 128
    assert max(answer.recorded.frame.steps.prompt) == 4000


def run_process(text: bytes) -> bytes:
    command = [sys.executable, "-m", "twostroke.simulator.replay"]
    return subprocess.run(command, input=text, capture_output=True, check=True).stdout


def test_the_process_answers_as_the_function_does() -> None:
    question = job(Settings("static", 512, 4))
    answer = msgspec.json.decode(run_process(msgspec.json.encode(question)), type=Replay)
    assert answer == replay(question)


def test_the_process_says_why_it_cannot() -> None:
    question = job(Settings())
    question.steps = question.steps[:2]
    failure = msgspec.json.decode(run_process(msgspec.json.encode(question)), type=Failure)
    assert "only 2 steps" in failure.failed
    assert failure.hint
