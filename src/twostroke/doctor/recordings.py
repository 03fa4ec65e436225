"""Windows from recordings: of one engine, or of each replica of a fleet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.files import bounded_lines, open_at_once, reason
from twostroke.doctor.window import HINT, RecordedSettings, StepWindow, make_window
from twostroke.observability.fleet_file import is_fleet_file, read_fleet_file
from twostroke.observability.recorder import CALL_START, read_jsonl
from twostroke.observability.tracing.stations import CallLine, CallStations

MAX_CALLS = 2**18
# Fewer replicas are read than a fleet may have: each is replayed.
MAX_REPLICAS_READ = 64


def read_windows(
    path: Path, settings: RecordedSettings | None = None, seconds: float | None = None
) -> list[StepWindow]:
    """One window, or of a fleet's file one for each replica that had requests.

    Raises:
        ConfigError: A file cannot be read, is no recording, or holds no requests.
    """
    if not is_fleet_file(path):
        return [_read_window(path, path.name, settings, seconds)]
    head, _ = read_fleet_file(path)
    if len(head.recordings) > MAX_REPLICAS_READ:
        raise ConfigError(
            f"{path} names {len(head.recordings)} recordings; at most {MAX_REPLICAS_READ} are read",
            hint="give single recordings",
        )
    windows = []
    for number, name in enumerate(head.recordings):
        try:
            windows.append(_read_window(path.parent / name, f"replica {number}", settings, seconds))
        except ConfigError as error:
            if error.hint != HINT:  # it had nothing to do
                raise
    if not windows:
        raise ConfigError(f"no replica of {path} has requests", hint=HINT)
    return windows


def _read_window(
    path: Path, name: str, settings: RecordedSettings | None, seconds: float | None
) -> StepWindow:
    events = list(read_jsonl(path))
    return make_window(name, events, _read_calls(path), settings, seconds)


def _read_calls(path: Path) -> list[CallStations]:
    """The calls over HTTP; lines that cannot be read are passed over."""
    decoder = msgspec.json.Decoder(CallLine)
    calls: list[CallStations] = []
    try:
        with open(path, "rb", opener=open_at_once) as file:
            for line in bounded_lines(file):
                if not line.startswith(CALL_START) or len(calls) >= MAX_CALLS:
                    continue
                try:
                    calls.append(decoder.decode(line).call)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint="check the path") from error
    return calls
