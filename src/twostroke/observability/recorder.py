"""Keeps the latest step events in memory and, if asked, all of them in a file."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.files import bounded_lines, open_at_once, reason
from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.events import StepEvent
from twostroke.observability.observer import ObservedStep
from twostroke.observability.tracing.stations import CallLine, CallStations

logger = logging.getLogger(__name__)

_LINE_START = b'{"step":'
CALL_START = b'{"call":'  # the line of a call over HTTP, between those of steps


class StepRing:
    """The latest ``capacity`` events. One thread adds, any number read."""

    def __init__(self, capacity: int) -> None:
        self._events: deque[StepEvent] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def add(self, events: Iterable[StepEvent]) -> None:
        with self._lock:
            self._events.extend(events)

    def since(self, step: int) -> list[StepEvent]:
        """Events of later steps, in order, as far as they are kept."""
        latest: list[StepEvent] = []
        with self._lock:
            for event in reversed(self._events):
                if event.step <= step:
                    break
                latest.append(event)
        latest.reverse()
        return latest


class Recorder:
    """A ring of the latest ``capacity`` events, and a JSON line for each in ``path``.

    One thread writes (``add``), any number read (``events``). Trouble with the file ends the
    recording with one warning; it never reaches the engine.

    Args:
        capacity: Events held in memory, at least 1.
        path: File to append to; written line by line, so that a crash costs one line at most.
        take_calls: Gives the calls over HTTP that have ended since it was called last; each gets a
            line before the next step's.

    Raises:
        ConfigError: If the file cannot be opened.
    """

    def __init__(
        self,
        capacity: int,
        path: str | Path | None = None,
        take_calls: Callable[[], Sequence[CallStations]] | None = None,
    ) -> None:
        self._take_calls = take_calls
        self._ring = StepRing(capacity)
        self._path = None if path is None else Path(path)
        self._file = None if self._path is None else _open(self._path)

    def on_add(self, requests: Sequence[Request]) -> None:
        """Requests are recorded by their first step."""

    def on_step(self, step: ObservedStep) -> None:
        self.add(step.event)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        """The next step's event names them."""

    def add(self, event: StepEvent) -> None:
        self._ring.add((event,))
        if self._file is not None:
            try:
                self._write_calls(self._file)
                self._file.write(event.to_json().decode() + "\n")
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                logger.warning("recording of step events to %s stopped: %s", self._path, error)
                self.close()

    def events(self, since: int = -1) -> list[StepEvent]:
        """Events with ``step > since``, in order; those that have left the ring are gone."""
        return self._ring.since(since)

    def close(self) -> None:
        """Flush and close the file; events stay readable. Harmless when called again."""
        file, self._file = self._file, None
        if file is not None:
            try:
                self._write_calls(file)
                file.close()
            except OSError as error:
                logger.warning("step events at the end of %s may be lost: %s", self._path, error)

    def _write_calls(self, file: TextIOWrapper) -> None:
        for call in () if self._take_calls is None else self._take_calls():
            file.write(msgspec.json.encode(CallLine(call)).decode() + "\n")


def read_jsonl(path: str | Path) -> Iterator[StepEvent]:
    """The events of a recorded file, one by one.

    Lines of calls are passed over; unfinished lines (the writer was killed) are left out.

    Raises:
        ConfigError: If the file cannot be read, or a line is no step event.
    """
    decoder = msgspec.json.Decoder(StepEvent)
    try:
        with open(path, "rb", opener=open_at_once) as file:
            for number, line in enumerate(bounded_lines(file), 1):
                try:
                    event = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    if line.startswith(CALL_START):
                        continue
                    if line.startswith(_LINE_START) and not isinstance(
                        error, msgspec.ValidationError
                    ):
                        continue
                    hint = "give a file that was written with --record"
                    raise ConfigError(
                        f"{path}, line {number}: no step event: {error}", hint=hint
                    ) from error
                yield event
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint="check the path") from error


def _open(path: Path) -> TextIOWrapper:
    try:
        file = path.open("a", encoding="utf-8", buffering=1)
        if _ends_inside_line(path):
            file.write("\n")
        return file
    except OSError as error:
        hint = "give --record a file in an existing folder that can be written to"
        raise ConfigError(f"cannot record to {path}: {error.strerror}", hint=hint) from error


def _ends_inside_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
