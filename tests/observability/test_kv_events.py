"""Protects: a router that comes back gets each batch once, from a restarted server, too."""

from __future__ import annotations

from twostroke.observability.kv_events import KVEventLog


def numbers(log: KVEventLog, since: int) -> list[int]:
    return [batch.seq for batch in log.kept.since(since)]


def test_batches_go_on_behind_a_number() -> None:
    log = KVEventLog(4, "CPU", lambda: 0.0)
    assert numbers(log, -1) == numbers(log, 5) == []
    for _ in range(3):
        log.on_cleared()
        log.flush()
    assert numbers(log, -1) == [0, 1, 2]
    assert numbers(log, 0) == [1, 2]
    assert numbers(log, 2) == []
    # Of the server before this one, which had counted further.
    assert numbers(log, 3) == numbers(log, 5000) == [0, 1, 2]
