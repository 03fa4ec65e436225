"""What happens between replicas: a file with each request's way, beside the replicas' recordings.

The first line names the recordings, one of each replica, in the file's own folder; each further
line is a ``RouteEvent``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.files import bounded_lines, open_at_once, reason, write_text
from twostroke.observability.routes import RouteEvent

_FIRST = b'{"fleet":'
VERSION = 1
MAX_REPLICAS = 10_000
HINT = "give the .fleet file that twostroke simulate --record wrote"


class FleetHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: ``recordings`` are names of files, by index of the replica."""

    fleet: int
    router: str
    recordings: list[str]


class FleetRecorder:
    """Writes a new file, line by line.

    Raises:
        ConfigError: It cannot be written.
    """

    def __init__(self, path: Path, router: str, recordings: list[Path]) -> None:
        names = [recording.name for recording in recordings]
        head = FleetHead(fleet=VERSION, router=router, recordings=names)
        try:
            write_text(path, "")
            self._file = path.open("a", encoding="utf-8")
            self._write(head)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}"
            raise ConfigError(message, hint="give another --record") from error

    def add(self, event: RouteEvent) -> None:
        self._write(event)

    def _write(self, value: object) -> None:
        self._file.write(msgspec.json.encode(value).decode() + "\n")

    def close(self) -> None:
        self._file.close()


def is_fleet_file(path: Path) -> bool:
    """Whether a file begins like one of a fleet; one that cannot be read does not."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(len(_FIRST)) == _FIRST
    except OSError:
        return False


def read_fleet_file(path: Path) -> tuple[FleetHead, list[RouteEvent]]:
    """The recordings' names and all routes, in order of time.

    A last line without its end (the writer was killed) is left out.

    Raises:
        ConfigError: The file cannot be read, or is none of a fleet.
    """
    head: FleetHead | None = None
    routes: list[RouteEvent] = []
    decode_route = msgspec.json.Decoder(RouteEvent).decode
    try:
        with open(path, "rb", opener=open_at_once) as file:
            for number, line in enumerate(bounded_lines(file), 1):
                try:
                    if head is None:
                        head = _checked(msgspec.json.decode(line, type=FleetHead), path)
                    elif line.endswith(b"\n"):
                        routes.append(_known(decode_route(line), head))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise ConfigError(f"{path}, line {number}: {error}", hint=HINT) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint="check the path") from error
    if head is None:
        raise ConfigError(f"{path} is empty", hint=HINT)
    routes.sort(key=lambda route: route.time)
    return head, routes


def _checked(head: FleetHead, path: Path) -> FleetHead:
    if head.fleet != VERSION:
        raise ConfigError(f"{path} is of version {head.fleet}, not {VERSION}", hint=HINT)
    if not 1 <= len(head.recordings) <= MAX_REPLICAS:
        raise ConfigError(f"{path} names {len(head.recordings)} recordings", hint=HINT)
    for name in head.recordings:
        if name in ("", "..") or "\0" in name or name != Path(name).name:
            raise ConfigError(
                f"{path} names {name[:80]!a}, which is no file of its folder", hint=HINT
            )
    return head


def _known(route: RouteEvent, head: FleetHead) -> RouteEvent:
    if not 0 <= route.replica < len(head.recordings):
        raise msgspec.ValidationError(f"there is no replica {route.replica}")
    return route
