"""Protects: the doctor reads over HTTP what a recording of the same server would tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.server.running import running_process, wait_until
from twostroke.cli.main import run
from twostroke.core.errors import ConfigError
from twostroke.doctor.live import LiveServer, events_of
from twostroke.doctor.recordings import read_windows
from twostroke.doctor.window import StepWindow
from twostroke.inspector.source import Description
from twostroke.observability.events import RefusedRequest, StartedRequest, StepEvent
from twostroke.observability.frames.columns import encode_steps

SERVE = ["-m", "twostroke", "serve", "pilot", "--port", "0", "--max-num-seqs", "3"]
# The first target is missed whatever the machine, the second one never.
SERVE += ["--target", "ttft=p95:0.000001", "--target", "e2el=p95:500"]
NUM_REQUESTS, ANSWER = 6, 8


@dataclass(frozen=True)
class Served:
    """A server that has answered some requests, and what it recorded of them."""

    url: str
    recording: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("live") / "steps.jsonl"
    with running_process(*SERVE, "--record", str(path)) as server:
        url = server.url()
        with pytest.raises(ConfigError, match="has run no step yet"), LiveServer(url) as live:
            live.window(None)
        for number in range(NUM_REQUESTS):
            body = {
                "model": "pilot",
                "prompt": [10 + number] * (20 + 40 * number),
                "max_tokens": ANSWER,
                "ignore_eos": True,
                "temperature": 0,
            }
            httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()
        # A recording is written behind the steps.
        wait_until(lambda: path.exists() and path.read_text().count('"finished":[{') >= 1)
        wait_until(lambda: len(read_windows(path)[0].requests) == NUM_REQUESTS)
        yield Served(url, path)


def window_of(served: Served, seconds: float | None = None) -> StepWindow:
    with LiveServer(served.url) as live:
        return live.window(seconds)


def test_a_window_is_what_the_recording_says(served: Served) -> None:
    shown, (recorded,) = window_of(served), read_windows(served.recording)
    assert len(shown.requests) == NUM_REQUESTS
    for live, kept in zip(shown.requests, recorded.requests, strict=True):
        assert live.request_id == kept.request_id
        assert (live.prompt, live.cached, live.output) == (kept.prompt, kept.cached, kept.output)
        assert live.keys == kept.keys and live.output == ANSWER
        assert live.arrival == pytest.approx(kept.arrival, abs=1e-5)
        assert live.token_times == pytest.approx(kept.token_times, abs=1e-5)
        assert live.finish == pytest.approx(kept.finish, abs=1e-5)
    assert len(shown.events) == len(recorded.events)
    for step, written in zip(shown.events, recorded.events):
        shares = [msgspec.structs.replace(s, queued_since=None) for s in written.scheduled]
        assert step.scheduled == shares and step.num_waiting == written.num_waiting
        assert step.held_back == written.held_back and step.free_blocks == written.free_blocks
    # What no step says: the flags, and when each answer's last byte was written.
    assert shown.settings.max_num_seqs == 3 and recorded.settings.max_num_seqs is None
    assert shown.settings.num_blocks == recorded.settings.num_blocks
    assert set(shown.calls) == {request.request_id for request in shown.requests}
    for request in shown.requests:
        last = shown.calls[request.request_id].last_byte
        assert last is not None and request.finish is not None and last >= request.finish - 0.01


def test_targets_are_the_servers(served: Served) -> None:
    with LiveServer(f"{served.url}/v1/") as live:
        wait_until(lambda: any(missed for _, missed in live.targets()))
        pairs = live.targets()
    assert [(target.metric, missed) for target, missed in pairs] == [
        ("ttft", True),
        ("e2el", False),
    ]


def test_the_command_reads_it(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", served.url, "--json", "--no-proof"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["windows"][0]["requests"] == NUM_REQUESTS
    assert [each["missed"] for each in told["targets"]] == [True, False]
    assert told["causes"]


def test_a_window_ends_now_and_says_how_old_it_is(served: Served) -> None:
    with LiveServer(served.url) as live:
        wait_until(lambda: live.window(None).age > 0.2)
        assert live.window(60).age > 0.2
        with pytest.raises(ConfigError, match=r"ran no step in the last 0\.2 s"):
            live.window(0.2)


def test_what_is_no_twostroke_server_is_told(served: Served) -> None:
    with LiveServer(f"{served.url}/health") as live, pytest.raises(ConfigError) as raised:
        live.window(None)
    assert "answers 404" in raised.value.message and "twostroke" in (raised.value.hint or "")


# ---- answers that no sound server gives ------------------------------------------------------


def refused(step: int, number: int) -> StepEvent:
    """A step after which calls were refused; a request begins in the first of all."""
    begun = StartedRequest(
        request_id="r",
        arrival_time=0.0,
        tenant="",
        priority=0,
        num_prompt_tokens=4,
        num_cached_tokens=0,
        max_total_tokens=8,
    )
    call = RefusedRequest(
        request_id="x", tenant="", predicted_ttft=2.0, ttft_target=1.0, factor=1.0, ahead=3
    )
    return StepEvent(
        step=step,
        time=10.0 * step,
        duration=0.5,
        token_budget=64,
        started=[] if step else [begun],
        refused=[call] * number,
    )


def answering(
    frame: bytes, last_step: int, now: float
) -> Callable[[httpx.Request], httpx.Response]:
    shown = Description("live", "e", "m", last_step=last_step, now=now)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(("/engines", "/calls")):  # of another version
            return httpx.Response(404)
        is_steps = request.url.path.endswith("/steps")
        return httpx.Response(200, content=frame if is_steps else msgspec.json.encode(shown))

    return answer


def test_refusals_count_by_the_step_after_them() -> None:
    """All since the server's start were counted, whatever the window."""
    events = [refused(0, 5), refused(1, 0), refused(2, 2)]
    frame = encode_steps(events)
    assert [event.step for event in events_of(frame)] == [0, 1, 2]
    answer = answering(msgspec.json.encode(frame), 2, 20.5)
    with LiveServer("http://server", httpx.MockTransport(answer)) as live:
        assert live.window(None).refused == 7
        with pytest.raises(ConfigError, match="no request begins"):
            live.window(15)  # the request began before it
    events[1] = msgspec.structs.replace(events[1], started=events[0].started)
    answer = answering(msgspec.json.encode(encode_steps(events)), 2, 20.5)
    with LiveServer("http://server", httpx.MockTransport(answer)) as live:
        assert live.window(15).refused == 2


@pytest.mark.parametrize("column", ["time", "free", "budget"])
def test_a_frame_that_lacks_a_column_is_told(column: str) -> None:
    frame = msgspec.to_builtins(encode_steps([refused(0, 0)]))
    frame["steps"][column] = []
    answer = answering(msgspec.json.encode(frame), 0, 1.0)
    with (
        LiveServer("http://server", httpx.MockTransport(answer)) as live,
        pytest.raises(ConfigError, match="is not understood"),
    ):
        live.window(None)


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://", "ftp://h", "h:80"])
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL of a server"):
        LiveServer(url)
