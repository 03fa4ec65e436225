"""All requests of a recording: when each arrived, started and ended, and what it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from twostroke.core.prefix_hit import PrefixHit
from twostroke.inspector.source import FoundRequest, FoundRequests, OverviewRequest
from twostroke.observability.events import ScheduledTokens, StepEvent
from twostroke.observability.snapshot import RequestSnapshot

MAX_ENDED = 512  # requests that ended before a moment and are named with it


@dataclass(slots=True)
class _Row:
    """One request; steps are those of its first share and of its end."""

    request_id: str
    first_step: int
    arrival: float
    started: float
    prompt: int = 0
    max_total: int = 0
    cached: int = 0
    tenant: str = ""
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    first_token: float | None = None
    output: int = 0
    preemptions: int = 0
    last_step: int | None = None
    finish: float | None = None
    finish_reason: str | None = None
    hit: PrefixHit | UnsetType = UNSET


class RequestTable:
    """Filled step by step by one thread, read by any."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def add(self, event: StepEvent) -> None:
        """Take in the next step."""
        end = event.time + event.duration
        for share in event.scheduled:
            row = self._rows.get(share.request_id)
            if row is None:
                since = event.time if share.queued_since is None else share.queued_since
                row = _Row(share.request_id, event.step, since, event.time)
                self._rows[share.request_id] = row
            # Recordings of earlier versions do not name what starts; the prompt shows by its parts.
            if share.num_prompt_tokens:
                row.prompt = max(row.prompt, share.start + share.num_prompt_tokens)
            if share.num_new_tokens:
                row.output += share.num_new_tokens
                row.first_token = end if row.first_token is None else row.first_token
        for started in event.started:
            if row := self._rows.get(started.request_id):
                row.prompt, row.max_total = started.num_prompt_tokens, started.max_total_tokens
                row.cached, row.tenant = started.num_cached_tokens, started.tenant
                row.hit = started.prefix_hit
                row.priority, row.arrival = started.priority, started.arrival_time
        for labelled in event.labelled:
            if row := self._rows.get(labelled.request_id):
                row.labels = labelled.labels
        for preempted in event.preempted:
            if row := self._rows.get(preempted.request_id):
                row.preemptions += 1
        for finished in event.finished:
            if row := self._rows.get(finished.request_id):
                row.last_step, row.finish = event.step, end
                row.finish_reason = finished.reason.value

    def end_of(self, request_id: str) -> int | None:
        """The step that ended a request, once it is read."""
        row = self._rows.get(request_id)
        return None if row is None else row.last_step

    def ids_of(self, tenant: str) -> set[str]:
        return {row.request_id for row in list(self._rows.values()) if row.tenant == tenant}

    def within(self, begin: float, end: float) -> list[OverviewRequest]:
        """Requests that were there between two times, in order of arrival."""
        rows = (
            row
            for row in list(self._rows.values())
            if row.arrival <= end and (row.finish is None or row.finish >= begin)
        )
        return [
            OverviewRequest(
                row.request_id,
                row.arrival,
                row.started,
                row.first_token,
                row.finish,
                row.finish_reason,
                row.prompt,
                row.output,
            )
            for row in sorted(rows, key=lambda row: row.arrival)
        ]

    def find(self, text: str, tenant: str | None, count: int, last_step: int) -> FoundRequests:
        """Requests with ``text``, in whatever case, in id, tenant or a label.

        Args:
            tenant: Whose requests; ``None``: everybody's.
            count: How many are listed.
            last_step: The one that is shown of a request that has not ended.
        """
        wanted = text.casefold()
        rows = [
            row
            for row in list(self._rows.values())
            if (tenant is None or row.tenant == tenant)
            and any(
                wanted in value.casefold()
                for value in (row.request_id, row.tenant, *row.labels.values())
            )
        ]
        rows.sort(key=lambda row: row.arrival)
        listed = [
            FoundRequest(
                row.request_id,
                last_step if row.last_step is None else row.last_step,
                row.tenant,
                row.labels,
            )
            for row in rows[:count]
        ]
        return FoundRequests(listed, len(rows) - len(listed))

    def at(
        self, step: int, shares: Mapping[str, ScheduledTokens], time: float
    ) -> tuple[list[RequestSnapshot], list[RequestSnapshot], list[RequestSnapshot]]:
        """What runs, waits and has ended after ``step``.

        Args:
            shares: The latest one of each request that runs.
            time: When the step ended.
        """
        running, waiting, ended = [], [], []
        for row in list(self._rows.values()):
            if row.last_step is not None and row.last_step <= step:
                ended.append(_state(row, "finished", None, time))
            elif row.first_step <= step:
                share = shares.get(row.request_id)
                running.append(_state(row, "running", share, time))
            elif row.arrival <= time:
                waiting.append(_state(row, "waiting", None, time))
        waiting.sort(key=lambda request: request.arrival_time)
        ended.sort(key=lambda request: request.finish_time or 0.0)
        return running, waiting, ended[-MAX_ENDED:]


def _state(row: _Row, status: str, share: ScheduledTokens | None, time: float) -> RequestSnapshot:
    computed = output = 0
    if status == "finished":
        computed, output = row.prompt + row.output - 1, row.output
    elif share is not None:
        computed = share.start + share.num_tokens - share.num_drafts + share.num_accepted_drafts
        output = max(0, computed - row.prompt + int(share.sampled))
    is_token = row.first_token is not None and row.first_token <= time
    return RequestSnapshot(
        request_id=row.request_id,
        status=status,
        num_prompt_tokens=row.prompt,
        max_total_tokens=row.max_total,
        arrival_time=row.arrival,
        tenant=row.tenant,
        labels=row.labels,
        priority=row.priority,
        num_computed_tokens=computed,
        num_output_tokens=output,
        num_cached_tokens=row.cached,
        num_blocks=0 if share is None else share.num_blocks,
        num_preemptions=row.preemptions,
        first_scheduled_time=row.started if status != "waiting" else None,
        first_token_time=row.first_token if is_token else None,
        finish_time=row.finish if status == "finished" else None,
        finish_reason=row.finish_reason if status == "finished" else None,
        prefix_hit=row.hit,
    )
