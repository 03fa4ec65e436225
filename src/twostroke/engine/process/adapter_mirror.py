"""What a front end knows of the adapters of an engine in another process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from twostroke.engine.adapters.orders import (
    AdapterOrder,
    KnownAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from twostroke.engine.adapters.registry import Adapters


def note_adapter(adapters: Adapters, changed: KnownAdapter) -> None:
    """Know what was loaded for a client, and forget what was unloaded: the known one."""
    by_name = dict(adapters.known)
    if by_name.pop(changed.name, None) is None:
        by_name[changed.name] = changed
    adapters.known = by_name


def restoring_orders(
    wanted: Mapping[str, KnownAdapter], known: Iterable[KnownAdapter]
) -> Iterator[AdapterOrder]:
    """What a new engine has to do, so that it has the adapters that its client knows.

    Args:
        known: Those that it has.
    """
    there = {each.name for each in known}
    for name in there - set(wanted):
        yield UnloadAdapter(name)
    for name, adapter in wanted.items():
        if name not in there:
            yield LoadAdapter(name, adapter.path)
