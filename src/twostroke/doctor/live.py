"""A window from a live server: its step events over HTTP, its calls, targets and metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.request import FinishReason
from twostroke.core.step import Reason
from twostroke.core.targets import Target, parse_targets
from twostroke.doctor.imbalance import ALIKE, RouterFacts
from twostroke.doctor.window import HINT, StepWindow, make_window, settings_of
from twostroke.engine.clients.engine_view import EngineView
from twostroke.inspector.request_routes import RequestDetails
from twostroke.inspector.source import Description
from twostroke.observability.events import (
    FinishedRequest,
    HeldBackRequest,
    PreemptedRequest,
    ScheduledTokens,
    StepEvent,
)
from twostroke.observability.frames.columns import RowNote, StepFrame
from twostroke.observability.tracing.call_book import EndedCalls
from twostroke.observability.tracing.stations import CallStations

SECONDS = 10.0  # of one answer
PAGE_STEPS, PAGE_SHARES = 2048, 32_768
# Calls whose stations are asked for, one by one: the latest.
ASKED_CALLS = 24
KEY_VARIABLE = "OPENAI_API_KEY"
NO_ENGINE = EngineView("", "", "starting", number=-1)
NO_TRAFFIC = "ask again after some requests, or wait for them: --watch 30s"
LULL = "give a longer --window, or ask again after some requests"
T = TypeVar("T")


class ShownTarget(msgspec.Struct):
    """A target of ``/v1/targets``, as far as it is read."""

    target: str
    verdict: str = ""


class ShownTargets(msgspec.Struct):
    """The answer of ``/v1/targets``."""

    data: list[ShownTarget] = []


class ShownEngines(msgspec.Struct):
    """The answer of ``/v1/inspect/engines``, as far as it is read."""

    engines: list[EngineView]


class LiveServer:
    """What a server tells. Use as a context manager.

    Args:
        url: The server, with or without /v1; the key comes from OPENAI_API_KEY.
        transport: Stands in for the network in tests.

    Raises:
        ConfigError: The URL is malformed.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        if not _names_server(url):
            raise ConfigError(f"{url} is no URL of a server", hint="write http://HOST:PORT")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = os.environ.get(KEY_VARIABLE)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(timeout=SECONDS, headers=headers, transport=transport)
        self._refused: dict[int, int] = {}  # calls, by the step after them

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def windows(self, seconds: float | None) -> tuple[list[StepWindow], RouterFacts]:
        """The steps that it still knows, of the ``seconds`` before now, of each engine.

        Raises:
            ConfigError: It cannot be reached, shows no steps, or had no requests.
        """
        shown = self._decode("/v1/inspect", Description, {})
        if not shown.all_tenants:
            raise ConfigError(
                f"this key sees its own requests only, and {self.url} has others",
                hint=f"put an administrator's key into {KEY_VARIABLE}",
            )
        engines = self._engines()
        if len(engines) < 2:
            return [self._window(shown, seconds)], ALIKE
        windows, idle = [], []
        for view in engines:
            name = f"engine {view.engine}"
            try:
                events = list(self._pages(name, shown, view))
                windows.append(self._cut(name, shown, events, seconds))
            except ConfigError as error:
                if error.hint not in (HINT, LULL):  # it had nothing to do
                    raise
                idle.append(name)
        if not windows:
            raise ConfigError(f"no engine of {self.url} had requests", hint=LULL)
        self._note_calls(windows[0], min(window.begin for window in windows))
        named = {f"engine {view.engine}": view for view in engines}
        return windows, RouterFacts(
            idle,
            {name: view.role for name, view in named.items()},
            {name: view.routed for name, view in named.items()},
            {name: _trouble(view) for name, view in named.items() if _trouble(view)},
        )

    def window(self, seconds: float | None) -> StepWindow:
        """That of the only engine, or of the first; raises as ``windows``."""
        return self.windows(seconds)[0][0]

    def _engines(self) -> list[EngineView]:
        """The engines of the main model; none, where a server of another version tells of none."""
        answer = self._get("/v1/inspect/engines", {"columns": 1})
        if answer.status_code != 200:
            return []
        shown = _decoded(answer.content, ShownEngines, self.url).engines or [NO_ENGINE]
        return [view for view in shown if view.model == shown[0].model and view.number >= 0]

    def _window(self, shown: Description, seconds: float | None) -> StepWindow:
        """What its only engine did."""
        if shown.last_step < 0:
            raise ConfigError(f"{self.url} has run no step yet", hint=NO_TRAFFIC)
        name = shown.name or self.url
        window = self._cut(name, shown, list(self._pages(name, shown)), seconds)
        self._note_calls(window, window.begin)
        return window

    def _cut(
        self, name: str, shown: Description, events: list[StepEvent], seconds: float | None
    ) -> StepWindow:
        """The window of an engine's steps, with the latest calls of it."""
        age = max(0.0, shown.now - events[-1].time - events[-1].duration) if events else 0.0
        if seconds is not None and age >= seconds:
            raise ConfigError(
                f"{name} ran no step in the last {seconds:g} s; the latest ended {age:,.0f} s ago",
                hint=LULL,
            )
        settings = settings_of(shown.configuration)
        window = make_window(name, events, (), settings, seconds and seconds - age)
        window.age = age
        for call in self._calls(window):
            for request_id in call.request_ids:
                window.calls[request_id] = call
        window.refused = sum(self._refused.get(event.step, 0) for event in window.events)
        return window

    def _note_calls(self, window: StepWindow, since: float) -> None:
        """How many calls came and were refused, those that no engine saw too."""
        answer = self._get("/v1/inspect/calls", {"since": since})
        if answer.status_code == 200:
            ended = _decoded(answer.content, EndedCalls, self.url)
            window.num_calls = sum(ended.statuses.values())
            window.status_429 = ended.statuses.get(429, 0)

    def targets(self) -> list[tuple[Target, bool]]:
        """Its targets, and whether each is missed; nothing where it has none."""
        answer = self._get("/v1/targets", {})
        if answer.status_code != 200:
            return []
        shown = _decoded(answer.content, ShownTargets, self.url)
        pairs = []
        for each in shown.data:
            try:
                (target,) = parse_targets([each.target])
            except ConfigError:
                continue  # of a later version
            pairs.append((target, each.verdict == "missed"))
        return pairs

    def _pages(
        self, name: str, shown: Description, view: EngineView | None = None
    ) -> Iterator[StepEvent]:
        """Steps in order, as far as the server keeps them; of one of several engines."""
        path, step = "/v1/inspect/steps", shown.first_step
        query: dict[str, str | int] = {"to": shown.last_step, "fit": "first"}
        query["max_shares"] = PAGE_SHARES
        if view is not None:
            path, step = "/v1/inspect/engines/steps", 0
            query = {"model": view.model, "number": view.number}
        refused: dict[int, int] = {}
        self._refused = refused
        while view is not None or step <= shown.last_step:
            asked = {**query, "from": step, "max_steps": PAGE_STEPS}
            frame = self._decode(path, StepFrame, asked)
            try:
                events = events_of(frame, shown.num_blocks)
                steps = frame.steps.step
                refused.update((steps[note.row], note.refused) for note in frame.notes)
            except (IndexError, KeyError, ValueError) as error:
                raise _not_understood(self.url, error) from error
            yield from events
            if not events or frame.last < step:
                return
            step = frame.last + 1

    def _calls(self, window: StepWindow) -> Iterator[CallStations]:
        """Stations of the latest calls that have ended."""
        ended = [request for request in window.requests if request.finish is not None]
        for request in ended[-ASKED_CALLS:]:
            details = self._decode(
                "/v1/inspect/request", RequestDetails, {"id": request.request_id}
            )
            if details.call is not None:
                yield details.call

    def _decode(self, path: str, type_: type[T], query: Mapping[str, str | float]) -> T:
        answer = self._get(path, query)
        if answer.status_code in (401, 403):
            hint = f"put an administrator's key into {KEY_VARIABLE}"
            raise ConfigError(f"{self.url}{path} wants a key", hint=hint)
        if answer.status_code != 200:
            raise ConfigError(
                f"{self.url}{path} answers {answer.status_code}",
                hint="is a twostroke server running there, with its model loaded?",
            )
        return _decoded(answer.content, type_, self.url)

    def _get(self, path: str, query: Mapping[str, str | float]) -> httpx.Response:
        try:
            return self._http.get(self.url + path, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(
                f"cannot reach {self.url}: {why}",
                hint="is a server running there? `twostroke serve` starts one",
            ) from error


def events_of(frame: StepFrame, num_blocks: int = 0) -> list[StepEvent]:
    """The steps of a frame as events again, as far as its columns tell; none may be merged."""
    steps, notes = frame.steps, {note.row: note for note in frame.notes}
    shares = _shares_of(frame)
    events, held = [], list[HeldBackRequest]()
    for row, step in enumerate(steps.step):
        note = notes.get(row, RowNote(row))
        if note.held_back is not None:  # given where it changes
            held = [
                HeldBackRequest(
                    request_id=_name(frame, each.request),
                    reason=Reason(each.reason),
                    behind=each.behind,
                )
                for each in note.held_back
            ]
        events.append(
            StepEvent(
                step=step,
                time=steps.time[row],
                duration=steps.duration[row],
                scheduled=shares[row],
                num_tokens=steps.tokens[row],
                token_budget=steps.budget[row],
                num_running=steps.running[row],
                num_waiting=steps.waiting[row],
                total_blocks=num_blocks,
                free_blocks=steps.free[row],
                cached_blocks=steps.cached[row],
                allocated_slots=steps.allocated[row],
                used_slots=steps.used[row],
                prefix_queries=steps.queries[row],
                prefix_hits=steps.hits[row],
                preempted=[
                    PreemptedRequest(request_id=_name(frame, request))
                    for request, _ in note.preempted
                ],
                held_back=held,
                finished=[
                    FinishedRequest(request_id=_name(frame, request), reason=FinishReason(why))
                    for request, why in note.finished
                ],
                started=note.started,
                timings={name: column[row] for name, column in frame.timings.items()},
            )
        )
    return events


def _shares_of(frame: StepFrame) -> list[list[ScheduledTokens]]:
    """What requests got, by step."""
    shares: list[list[ScheduledTokens]] = [[] for _ in frame.steps.step]
    columns = frame.shares
    for index, row in enumerate(columns.row):
        shares[row].append(
            ScheduledTokens(
                request_id=frame.ids[columns.request[index]],
                start=columns.start[index],
                num_tokens=columns.tokens[index],
                num_prompt_tokens=columns.prompt[index],
                sampled=columns.new[index] > 0,
                num_new_tokens=columns.new[index],
                num_blocks=columns.blocks[index],
                num_drafts=columns.drafts[index],
                num_accepted_drafts=columns.accepted[index],
            )
        )
    return shares


def _name(frame: StepFrame, index: int) -> str:
    return frame.ids[index] if index >= 0 else ""


def _decoded(body: bytes, type_: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_understood(url, error) from error


def _not_understood(url: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{url} answers what is not understood: {error}",
        hint="is it a twostroke server, of this version?",
    )


def _trouble(view: EngineView) -> str:
    """Why an engine takes no requests, or has not answered for long; empty: it is well."""
    if view.state in ("ready", "leaving", "starting", "asleep"):
        return view.reason if view.state == "ready" else ""
    return view.reason or view.state


def _names_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its pair, a port beyond the last
        return False
