"""Step events as a Chrome trace, for https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google, 2016), JSON object form. One track shows the engine's steps,
one more each request: queued, then a slice per step it took part in. Times are microseconds since
the first thing shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from twostroke.observability.events import ScheduledTokens, StepEvent

ENGINE_PID, REQUESTS_PID = 1, 2
STEPS_TID = 0

Record = dict[str, Any]


def chrome_trace(events: Iterable[StepEvent]) -> dict[str, Any]:
    """The trace as plain values.

    ``traceEvents`` holds the names of tracks, then all else in order of time.
    """
    trace = _Trace()
    for event in events:
        trace.add(event)
    return trace.result()


def write_chrome_trace(events: Iterable[StepEvent], path: str | Path) -> None:
    """Write the trace of ``events`` as a JSON file."""
    Path(path).write_bytes(msgspec.json.encode(chrome_trace(events)))


class _Trace:
    def __init__(self) -> None:
        self._names: list[Record] = [
            _name("process_name", ENGINE_PID, 0, "engine"),
            _name("thread_name", ENGINE_PID, STEPS_TID, "steps"),
            _name("process_name", REQUESTS_PID, 0, "requests"),
        ]
        self._records: list[Record] = []  # times still in seconds on the engine's clock
        self._tids: dict[str, int] = {}
        self._queued_since: dict[str, float] = {}  # of preempted requests

    def add(self, event: StepEvent) -> None:
        end = event.time + event.duration
        self._slice(ENGINE_PID, STEPS_TID, f"step {event.step}", event.time, end, _step_args(event))
        self._counters(event)
        # A preemption is decided before the pass, so its victim may queue while this step runs.
        for preempted in event.preempted:
            self._queued_since[preempted.request_id] = event.time
            self._instant(preempted.request_id, "preempted", event.time, {"by": preempted.by})
        for item in event.scheduled:
            self._request(item, event, end)
        for done in event.finished:
            self._finish_queue(done.request_id, event.time)
            self._instant(
                done.request_id, f"finished: {done.reason.value}", end, {"step": event.step}
            )

    def result(self) -> dict[str, Any]:
        first = min((record["ts"] for record in self._records), default=0.0)
        for record in self._records:
            begin = round((record["ts"] - first) * 1e6, 3)
            if "dur" in record:
                # Rounding both ends, not the length, keeps neighbours from overlapping.
                record["dur"] = round(
                    round((record["ts"] + record["dur"] - first) * 1e6, 3) - begin, 3
                )
            record["ts"] = begin
        # A slice that encloses another must come first where both start together.
        self._records.sort(key=lambda record: (record["ts"], -record.get("dur", 0.0)))
        return {"traceEvents": self._names + self._records, "displayTimeUnit": "ms"}

    def _request(self, item: ScheduledTokens, event: StepEvent, end: float) -> None:
        since = self._queued_since.pop(item.request_id, item.queued_since)
        if since is not None and since < event.time:
            self._slice(REQUESTS_PID, self._tid(item.request_id), "queued", since, event.time, {})
        prefill = item.num_prompt_tokens > 0
        name = f"prefill [{item.start}:{item.start + item.num_tokens})" if prefill else "decode"
        args = {
            "step": event.step,
            "start": item.start,
            "tokens": item.num_tokens,
            "prompt_tokens": item.num_prompt_tokens,
            "new_tokens": item.num_new_tokens,
            "blocks": item.num_blocks,
        }
        self._slice(REQUESTS_PID, self._tid(item.request_id), name, event.time, end, args)

    def _finish_queue(self, request_id: str, now: float) -> None:
        """A preempted request that never came back."""
        since = self._queued_since.pop(request_id, None)
        if since is not None and since < now:
            self._slice(REQUESTS_PID, self._tid(request_id), "queued", since, now, {})

    def _counters(self, event: StepEvent) -> None:
        prompt = event.num_prompt_tokens
        self._counter(
            "KV blocks",
            event,
            {"used": event.total_blocks - event.free_blocks, "free": event.free_blocks},
        )
        self._counter(
            "requests", event, {"running": event.num_running, "waiting": event.num_waiting}
        )
        self._counter(
            "tokens per step", event, {"prefill": prompt, "decode": event.num_tokens - prompt}
        )
        self._counter("KV waste", event, {"ratio": event.kv_waste})

    def _counter(self, name: str, event: StepEvent, values: dict[str, float]) -> None:
        self._records.append(
            {
                "ph": "C",
                "name": name,
                "pid": ENGINE_PID,
                "tid": STEPS_TID,
                "ts": event.time,
                "args": values,
            }
        )

    def _slice(self, pid: int, tid: int, name: str, begin: float, end: float, args: Record) -> None:
        duration = max(0.0, end - begin)
        self._records.append(
            {
                "ph": "X",
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": begin,
                "dur": duration,
                "args": args,
            }
        )

    def _instant(self, request_id: str, name: str, time: float, args: Record) -> None:
        tid = self._tid(request_id)
        self._records.append(
            {
                "ph": "i",
                "s": "t",
                "name": name,
                "pid": REQUESTS_PID,
                "tid": tid,
                "ts": time,
                "args": args,
            }
        )

    def _tid(self, request_id: str) -> int:
        tid = self._tids.get(request_id)
        if tid is None:
            tid = self._tids[request_id] = len(self._tids) + 1
            self._names.append(_name("thread_name", REQUESTS_PID, tid, request_id))
            self._names.append(
                {
                    "ph": "M",
                    "name": "thread_sort_index",
                    "pid": REQUESTS_PID,
                    "tid": tid,
                    "args": {"sort_index": tid},
                }
            )
        return tid


def _name(kind: str, pid: int, tid: int, name: str) -> Record:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _step_args(event: StepEvent) -> Record:
    """What Perfetto shows of a selected step; empty lists are left out."""
    args: Record = {
        "tokens": event.num_tokens,
        "token_budget": event.token_budget,
        "requests": len(event.scheduled),
        "running": event.num_running,
        "waiting": event.num_waiting,
        "free_blocks": event.free_blocks,
        "total_blocks": event.total_blocks,
        "prefix_queries": event.prefix_queries,
        "prefix_hits": event.prefix_hits,
    }
    args |= {f"seconds.{component}": seconds for component, seconds in event.timings.items()}
    lists = {"preempted": event.preempted, "held_back": event.held_back, "finished": event.finished}
    args |= {key: msgspec.to_builtins(items) for key, items in lists.items() if items}
    if event.error is not None:
        args["error"] = event.error
    return args
