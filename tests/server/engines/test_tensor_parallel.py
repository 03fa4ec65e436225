"""``twostroke serve -tp 2``: a rank is killed, and clients see no byte of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.engines.processes import started_by
from tests.server.engines.streamed_content import content_of
from tests.server.running import ServerProcess, running_process, wait_until

BODY = {"model": "pilot", "prompt": "The river", "seed": 5, "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ["-tp", "2", "--port", "0", "--kv-cache-memory", "64MiB", "--stall-timeout", "4"]
    with running_process("-m", "twostroke", "serve", *flags) as process:
        process.url()
        yield process
        ranks = rank_processes(process)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
        wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))


def rank_processes(server: ServerProcess) -> list[int]:
    """The ids of the processes that follow, children of the engine's."""
    engines = started_by(server.process.pid, "engine_process")
    return [rank for engine in engines for rank in started_by(engine, "ranks.follow")]


def stream(server: ServerProcess, kill_after: int | None = None) -> list[str]:
    lines: list[str] = []
    with httpx.stream(
        "POST", f"{server.url()}/v1/completions", json={**BODY, "stream": True}, timeout=60
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data"):
                lines.append(line)
            if len(lines) == kill_after:
                (rank,) = rank_processes(server)
                os.kill(rank, signal.SIGKILL)
                kill_after = None
    assert kill_after is None, "it was over before"
    return lines


def test_a_stream_goes_on_where_a_rank_is_killed(server: ServerProcess) -> None:
    expected = stream(server)
    assert len(expected) > 50
    killed = stream(server, kill_after=len(expected) // 3)
    assert content_of(killed) == content_of(expected)
    wait_until(lambda: httpx.get(server.url() + "/health").status_code == 200)
    assert "rank 1 was ended by SIGKILL" in server.stderr


def test_a_rank_that_is_killed_while_nothing_runs_costs_no_request_a_start(
    server: ServerProcess,
) -> None:
    (rank,) = rank_processes(server)
    starts = server.stderr.count("the engine runs again")
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: server.stderr.count("the engine runs again") > starts)
    assert "this engine ends with it" in server.stderr
    assert rank_processes(server) != [rank]
    assert content_of(stream(server))


def test_a_rank_that_hangs_is_ended_with_its_engine(server: ServerProcess) -> None:
    (rank,) = rank_processes(server)
    os.kill(rank, signal.SIGSTOP)
    assert content_of(stream(server))  # in the next engine
    wait_until(lambda: not Path(f"/proc/{rank}").exists())
    wait_until(lambda: httpx.get(server.url() + "/health").status_code == 200)
    assert len(rank_processes(server)) == 1


def test_while_one_group_of_ranks_starts_again_the_other_takes_what_comes() -> None:
    flags = ["-tp", "2", "--data-parallel-size", "2", "--port", "0", "--kv-cache-memory", "64MiB"]
    with running_process("-m", "twostroke", "serve", *flags) as server:
        server.url()
        wait_until(lambda: len(rank_processes(server)) == 2)
        os.kill(rank_processes(server)[0], signal.SIGKILL)  # of the engine that gets the first
        statuses, deadline = list[int](), time.monotonic() + 120
        while "the engine runs again" not in server.stderr:
            assert time.monotonic() < deadline, server.stderr
            body = {**BODY, "max_tokens": 4}
            answer = httpx.post(f"{server.url()}/v1/completions", json=body, timeout=60)
            statuses.append(answer.status_code)
        assert "was ended by SIGKILL" in server.stderr
        assert len(statuses) > 1 and set(statuses) == {200}, "none is refused, or waits for it"
