"""Tenants take turns: none waits behind all that another one has sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial
from weakref import ref

import pytest

from twostroke.constraints.compiling.turn_threads import Pieces, TurnThreads, in_one_piece

SECONDS = 30.0


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[TurnThreads]:
    made = TurnThreads("test", request.param)
    yield made
    made.close()


class Gate:
    """Work that notes when it runs, and may be held."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.opened = threading.Event()

    def work(self, name: str) -> Pieces[str]:
        return in_one_piece(lambda: self._run(name))

    def held(self) -> Pieces[str]:
        return in_one_piece(lambda: str(self.opened.wait(SECONDS)))

    def _run(self, name: str) -> str:
        self.done.append(name)
        return name


def test_results_and_errors_are_those_of_the_work(threads: TurnThreads) -> None:
    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic

    assert threads.submit("", in_one_piece(lambda: 3)).result(SECONDS) == 3
    with pytest.raises(Panic):
        threads.submit("", in_one_piece(panic)).result(SECONDS)
    assert threads.submit("", in_one_piece(lambda: 4)).result(SECONDS) == 4


def test_a_tenant_waits_behind_one_piece_of_another(threads: TurnThreads) -> None:
    gate = Gate()
    held = [threads.submit("many", gate.held()) for _ in range(2)]
    many = [threads.submit("many", gate.work(f"many {n}")) for n in range(20)]
    one = threads.submit("one", gate.work("one"))
    assert threads.num_waiting()["many"] >= 20
    gate.opened.set()
    wait([*held, *many, one], SECONDS)
    assert gate.done.index("one") <= 1


def test_with_two_threads_a_tenant_leaves_one_to_others() -> None:
    gate, threads = Gate(), TurnThreads("test", 2)
    held = [threads.submit("many", gate.held()) for _ in range(4)]
    assert threads.submit("one", gate.work("one")).result(SECONDS) == "one"
    gate.opened.set()
    wait(held, SECONDS)
    threads.close()


def test_long_work_gives_way_between_its_pieces() -> None:
    gate, threads, done = Gate(), TurnThreads("test", 1), list[str]()

    def long() -> Pieces[None]:
        assert gate.opened.wait(SECONDS)
        for number in range(3):
            done.append(f"piece {number}")
            time.sleep(0.002)
            yield

    first = threads.submit("long", long())
    second = threads.submit("one", in_one_piece(lambda: done.append("one")))
    gate.opened.set()
    wait([first, second], SECONDS)
    assert done == ["piece 0", "one", "piece 1", "piece 2"]
    threads.close()


def test_work_goes_on_that_outlives_other_work_of_its_tenant() -> None:
    """Without keys two threads serve one tenant: what ends first must not forget the other."""
    threads, long_has_begun = TurnThreads("test", 2), threading.Event()
    try:
        short = threads.submit("", in_one_piece(lambda: long_has_begun.wait(SECONDS)))

        def long() -> Pieces[str]:
            long_has_begun.set()
            wait([short])
            time.sleep(0.05)  # until the other thread has ended its turn
            yield
            return "whole"

        assert threads.submit("", long()).result(SECONDS) == "whole"
    finally:
        threads.close()


def test_of_one_tenant_the_cheapest_is_next() -> None:
    gate, threads = Gate(), TurnThreads("test", 1)
    held = threads.submit("", gate.held())
    costs = {"dear": 2.0, "first": 1.0, "second": 1.0, "cheap": 0.5}
    jobs = [threads.submit("", gate.work(name), cost=cost) for name, cost in costs.items()]
    gate.opened.set()
    wait([held, *jobs], SECONDS)
    assert gate.done == ["cheap", "first", "second", "dear"]
    threads.close()


def test_who_takes_long_rests_while_others_run() -> None:
    threads, ends = TurnThreads("test", 1), dict[str, float]()

    def long(name: str, seconds: float) -> Pieces[None]:
        def work() -> None:
            time.sleep(seconds)
            ends[name] = time.monotonic()

        return in_one_piece(work)

    jobs = [threads.submit("slow", long("first", 0.05), rest=4.0)]
    jobs.append(threads.submit("slow", long("second", 0.0), rest=4.0))
    jobs.append(threads.submit("other", long("other", 0.0), rest=4.0))
    wait(jobs, SECONDS)
    assert ends["second"] - ends["first"] > 0.19
    assert ends["other"] - ends["first"] < 0.15
    threads.close()


def test_what_was_cancelled_is_not_begun_and_does_not_count(threads: TurnThreads) -> None:
    gate = Gate()
    held = [threads.submit("", gate.held()) for _ in range(2)]
    jobs: list[Future[str]] = [threads.submit("a", gate.work(str(n))) for n in range(6)]
    for job in jobs[1:]:
        job.cancel()
    gate.opened.set()
    wait([*held, *jobs[:1]], SECONDS)
    threads.close()
    assert set(gate.done) <= {"0"} and not threads.num_waiting()


def test_what_was_cancelled_is_freed_at_once(threads: TurnThreads) -> None:
    """While other work runs, however long: clients that leave must not fill the memory."""
    gate, form = Gate(), Gate()
    held = [threads.submit("", gate.held()) for _ in range(2)]
    jobs = [threads.submit("a", in_one_piece(partial(id, form))) for _ in range(3)]
    kept = threads.submit("a", gate.work("kept"))
    form_there = ref(form)
    del form
    assert form_there() is not None and threads.num_waiting()["a"] == 4
    assert all(job.cancel() for job in jobs)
    assert form_there() is None and threads.num_waiting()["a"] == 1
    gate.opened.set()
    wait([*held, kept], SECONDS)
    assert gate.done == ["kept"]


def test_closing_ends_what_waits_and_refuses_more() -> None:
    gate, threads = Gate(), TurnThreads("test", 1)
    held = threads.submit("", gate.held())
    waiting = threads.submit("", gate.work("never"))
    threading.Timer(0.05, gate.opened.set).start()
    threads.close()
    assert held.done() and waiting.cancelled() and not gate.done
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit("", gate.work("late"))
