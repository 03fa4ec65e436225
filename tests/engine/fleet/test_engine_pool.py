"""Protects: whatever a pool does with its replicas, no request loses a token or its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.engine.fleet.pools import (
    CRASHES,
    REFUSED,
    changed,
    keeper_of,
    pids_of,
    plan_of,
    running,
    with_options,
)
from tests.engine.process.scripted_process import alive, call, pid_of, tokens_of, undisturbed, until
from twostroke.core.errors import EngineDeadError
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.cache_orders import ClearCache
from twostroke.engine.fleet import engine_pool, pool_keeper
from twostroke.engine.fleet.engine_pool import EnginePool
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.process import process_link
from twostroke.routing.autoscaler import AutoscalerOptions

Answers = dict[int, list[int]]


def num_ready(pool: EnginePool) -> int:
    return int(keeper_of(pool).describe().split()[0])


async def ready(pool: EnginePool, number: int) -> None:
    """Wait until it has as many replicas, and no other."""
    await until(lambda: num_ready(pool) == number == len(pool.engines))


async def update(pool: EnginePool, plan: PoolPlan) -> None:
    """As a server does: on a thread, while the event loop runs."""
    await asyncio.to_thread(pool.update, {"chat": plan})


async def answers_while(
    pool: EnginePool, do: Callable[[], object], seconds: float = 20.0
) -> list[tuple[GenerationRequest, Answers]]:
    """Requests that are always under way until a task is through, and what they got."""
    got: list[tuple[GenerationRequest, Answers]] = []
    over = asyncio.Event()

    async def client(name: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            request = call(f"{name}-{number}", first=name, max_tokens=60, n=1 + number % 2)
            got.append((request, await tokens_of(pool.submit(request))))

    clients = [asyncio.create_task(client(name)) for name in range(1, 5)]
    await until(lambda: pool.status.stats.num_running > 2)
    async with asyncio.timeout(seconds):
        result = do()
        if asyncio.iscoroutine(result):
            await result
        over.set()
        for each in clients:
            await each
    return got


async def check(got: list[tuple[GenerationRequest, Answers]]) -> None:
    assert len(got) >= 4
    for request, answer in got:
        assert answer == await undisturbed(request), request.request_id


async def test_a_replica_that_ends_is_started_again_and_counted() -> None:
    with running(plan_of()) as pool:
        first = pids_of(pool)

        async def kill() -> None:
            os.kill(first[0], signal.SIGKILL)
            await until(lambda: not pool.engines[0].takes_requests)
            assert "replica 0 is down" in keeper_of(pool).describe()
            await ready(pool, 2)

        await check(await answers_while(pool, kill))
        assert pids_of(pool)[0] != first[0] and pids_of(pool)[1] == first[1]
        metrics = (await pool.records()).metrics.decode()
        restarts = re.findall(r"replica_restarts_total\{engine=\"(\d)\".*\} (\d)", metrics)
        assert restarts == [("0", "1"), ("1", "0")]
        assert 'twostroke:replicas{model_name="chat",pool="chat",state="ready"} 2.0' in metrics


async def test_a_pool_grows_and_shrinks_under_load() -> None:
    with running(plan_of(1)) as pool:

        async def change() -> None:
            await update(pool, with_options(keeper_of(pool).plan, replicas=3))
            await ready(pool, 3)
            pids = pids_of(pool)
            await update(pool, with_options(keeper_of(pool).plan, replicas=1))
            await ready(pool, 1)
            await until(lambda: sum(map(alive, pids)) == 1)

        await check(await answers_while(pool, change))


async def test_what_a_leaving_replica_does_not_finish_in_time_goes_on_elsewhere() -> None:
    requests = [call(f"{number}", first=number, max_tokens=110) for number in range(1, 5)]
    with running(plan_of(2, drain_timeout=0.0)) as pool:
        streams = [pool.submit(request) for request in requests]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await until(lambda: min(stream.usage.output_tokens for stream in streams) > 3)
        await update(pool, with_options(keeper_of(pool).plan, replicas=1))
        await ready(pool, 1)
        assert not any(task.done() for task in reading), "before they have ended"
        assert pool.engines[0].num_unfinished == 4
        async with asyncio.timeout(20):
            assert [await task for task in reading] == [await undisturbed(r) for r in requests]


async def test_a_changed_plan_replaces_one_replica_after_another() -> None:
    with running(plan_of()) as pool:
        first, fewest = pids_of(pool), 2

        async def replace_all() -> None:
            nonlocal fewest
            await update(pool, changed(keeper_of(pool).plan, max_num_seqs=3))
            while set(first) & set(pids_of(pool)):
                fewest = min(fewest, num_ready(pool))
                assert len(pool.engines) <= 4
                await asyncio.sleep(0.005)

        await check(await answers_while(pool, replace_all))
        assert fewest == 2, "a replica leaves once its successor is ready"
        assert [engine.scheduler_config.max_num_seqs for engine in pool.engines] == [3, 3]
        await until(lambda: not any(map(alive, first)))


async def test_a_plan_that_is_changed_back_in_time_replaces_nothing() -> None:
    with running(plan_of()) as pool:
        former, first = keeper_of(pool).plan, pids_of(pool)
        await update(pool, changed(keeper_of(pool).plan, max_num_seqs=3))
        await until(lambda: bool(keeper_of(pool).starts))
        await update(pool, former)
        await until(lambda: not keeper_of(pool).starts)
        await asyncio.sleep(0.3)  # some of its ticks
        assert pids_of(pool) == first and num_ready(pool) == 2 and not keeper_of(pool).starts
        third = changed(keeper_of(pool).plan, max_num_seqs=3)
        await update(pool, third)  # and can follow another one
        await until(lambda: not set(first) & set(pids_of(pool)))


async def test_requests_stay_with_replicas_that_answer_as_they_began() -> None:
    with running(plan_of(1, drain_timeout=0.0)) as pool:
        first, seen = pids_of(pool)[0], 0

        async def change_the_model() -> None:
            nonlocal seen
            await update(pool, changed(keeper_of(pool).plan, dtype="float32"))
            await until(lambda: "leaving" in keeper_of(pool).describe())
            assert pid_of(pool.engines[0]) == first and len(pool.engines) == 2
            seen = pool.engines[0].num_unfinished
            os.kill(first, signal.SIGKILL)  # even then: its next process goes on with them
            await ready(pool, 1)

        await check(await answers_while(pool, change_the_model))
        assert seen, "some had begun before"
        assert not alive(first)


async def test_a_plan_that_cannot_be_followed_leaves_the_pool_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(plan_of()) as pool:
        former, first = keeper_of(pool).plan, pids_of(pool)
        await update(pool, changed(keeper_of(pool).plan, max_num_seqs=REFUSED))
        await update(pool, changed(keeper_of(pool).plan, max_num_seqs=REFUSED, block_size=8))
        assert keeper_of(pool).plan != former
        await until(lambda: keeper_of(pool).plan == former)
        assert pids_of(pool) == first and num_ready(pool) == 2
        assert "pool chat stays as it was: there is no room (hint: buy some)" in caplog.text
        third = changed(keeper_of(pool).plan, max_num_seqs=3)
        await update(pool, third)  # and can follow another one
        await until(lambda: not set(first) & set(pids_of(pool)))


async def test_a_replica_that_cannot_be_started_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_keeper, "PAUSES", (0.0, 0.4))
    with running(plan_of(1)) as pool:
        prepare = keeper_of(pool)._prepare
        broken = changed(keeper_of(pool).plan, max_num_seqs=REFUSED)
        monkeypatch.setattr(
            keeper_of(pool), "_prepare", lambda plan, number: prepare(broken, number)
        )
        await update(pool, with_options(keeper_of(pool).plan, replicas=2))
        await until(lambda: caplog.text.count("the next try is in 0.4 s: there is no room") == 2)
        assert num_ready(pool) == 1
        monkeypatch.setattr(keeper_of(pool), "_prepare", prepare)
        await ready(pool, 2)


async def test_the_autoscaler_adds_replicas_ends_them_and_wakes_the_last() -> None:
    scaling = AutoscalerOptions(
        autoscale="requests",
        autoscale_target=1,
        min_replicas=0,
        max_replicas=3,
        autoscale_interval=0.1,
        scale_down_after=0.3,
    )
    with running(plan_of(1, scaling)) as pool:
        await until(lambda: "0 of 0 ready; replica 0 asleep" in keeper_of(pool).describe())
        assert pool.unhealthy_reason() is None
        await check(await answers_while(pool, lambda: ready(pool, 3)))
        pids = pids_of(pool)
        await until(lambda: "0 of 0 ready; replica" in keeper_of(pool).describe())
        await until(lambda: "asleep" in keeper_of(pool).describe() and not any(map(alive, pids)))
        assert "restart" not in keeper_of(pool).describe(), "to wake is no restart"
        expected = await undisturbed(call("a"))
        async with asyncio.timeout(20):
            assert await tokens_of(pool.submit(call("a"))) == expected
        assert keeper_of(pool).describe().startswith("1 of 1 ready")


async def test_a_full_batch_is_a_full_replica() -> None:
    """By blocks alone nothing would be missing: answers are short."""
    scaling = AutoscalerOptions(
        autoscale="kv", autoscale_target=0.9, max_replicas=2, autoscale_interval=0.1
    )
    with running(plan_of(1, scaling, max_num_seqs=2)) as pool:
        requests = [call(f"{number}", first=number, max_tokens=60) for number in range(1, 9)]
        streams = [pool.submit(request) for request in requests]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        async with asyncio.timeout(20):
            await ready(pool, 2)
            assert [await task for task in reading] == [await undisturbed(r) for r in requests]


async def test_new_requests_wait_while_all_replicas_are_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_link, "PAUSES", (0.5,))
    with running(plan_of()) as pool:
        running_one = pool.submit(call("before", max_tokens=110))
        for pid in pids_of(pool):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: num_ready(pool) == 0)
        assert pool.unhealthy_reason() is not None
        given_back = pool.submit(call("given back"))
        given_back.abort()
        requests = [call(f"{number}", first=number, n=2) for number in range(1, 4)]
        streams = [pool.submit(request) for request in requests]
        with pytest.raises(EngineDeadError):
            await pool.manage_cache(ClearCache())
        async with asyncio.timeout(20):
            for request, stream in zip(requests, streams, strict=True):
                assert await tokens_of(stream) == await undisturbed(request)
            assert await tokens_of(running_one) == await undisturbed(call("b", max_tokens=110))
            await ready(pool, 2)
        assert not any(engine.num_unfinished for engine in pool.engines)


async def test_requests_do_not_wait_for_ever_where_no_replica_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_link, "PAUSES", (60.0,))
    with running(plan_of(1), stall_seconds=1.0) as pool:
        assert await tokens_of(pool.submit(call("a"))) == await undisturbed(call("a"))
        os.kill(pids_of(pool)[0], signal.SIGKILL)
        await until(lambda: num_ready(pool) == 0)
        await asyncio.sleep(1.2)
        with pytest.raises(EngineDeadError):
            pool.submit(call("late"))


async def test_an_engine_that_has_told_nothing_yet_is_not_full() -> None:
    with running(plan_of(1)) as pool:
        member = keeper_of(pool).members[0]
        stream = pool.submit(call("a", max_tokens=60))
        assert not member.engine.status.stats.total_blocks, "none of its reports was read"
        assert member.reader.read(time.monotonic()).kv < 0.5
        async with asyncio.timeout(20):
            assert await tokens_of(stream) == await undisturbed(call("a", max_tokens=60))


async def test_a_plan_whose_replicas_crash_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_keeper, "PAUSES", (0.0, 0.1))
    with running(plan_of()) as pool:
        former, first = keeper_of(pool).plan, pids_of(pool)
        await update(pool, changed(keeper_of(pool).plan, max_num_seqs=CRASHES))
        await until(lambda: keeper_of(pool).plan == former)
        assert pids_of(pool) == first and num_ready(pool) == 2


async def test_of_two_replicas_the_one_that_is_down_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "PAUSES", (60.0,))
    with running(plan_of()) as pool:
        await tokens_of(pool.submit(call("a")))
        first = pids_of(pool)
        os.kill(first[0], signal.SIGKILL)
        await until(lambda: num_ready(pool) == 1)
        await update(pool, with_options(keeper_of(pool).plan, replicas=1))
        await until(lambda: len(pool.engines) == 1)
        assert pids_of(pool) == first[1:]


async def test_what_has_left_is_ended_though_the_pool_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that supervises may wait no more for what the event loop does."""
    with running(plan_of()) as pool:
        await tokens_of(pool.submit(call("a")))
        monkeypatch.setattr(engine_pool, "do_on_loop", lambda loop, do, is_over: None)
        await asyncio.sleep(0.3)
        keeper = keeper_of(pool)
        keeper.update(with_options(keeper.plan, replicas=1))
        keeper.tick()
        assert len(pool.engines) == 1


async def test_a_pool_that_closes_while_a_replica_starts_leaves_none_behind() -> None:
    with running(plan_of(1)) as pool:
        await update(pool, with_options(keeper_of(pool).plan, replicas=3))
        await until(lambda: "starts" in keeper_of(pool).describe())


async def test_a_replica_that_starts_is_shown_with_its_role() -> None:
    plan = with_options(plan_of(1), role="prefill")
    with running(plan) as pool:
        await pool.records()  # it has a loop from now on
        await update(pool, with_options(plan, replicas=2))
        await until(lambda: len(pool.parts()) == 2)
        starting = pool.parts()[1].view
        assert (starting.engine, starting.state, starting.role) == ("1", "starting", "prefill")
