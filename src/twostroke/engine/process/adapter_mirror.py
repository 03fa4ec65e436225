"""What a front end knows of the adapters of an engine in another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from twostroke.engine.adapters.orders import (
    AdapterOrder,
    KnownAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.messages import ManageAdapters

RESTORING = -1  # number of the orders by which a new engine gets the adapters of the last one


def note_adapter(adapters: Adapters, changed: KnownAdapter) -> None:
    """Know what was loaded for a client, and forget what was unloaded: the known one."""
    by_name = dict(adapters.known)
    if by_name.pop(changed.name, None) is None:
        by_name[changed.name] = changed
    adapters.known = by_name


def restore_adapters(
    adapters: Adapters,
    wanted: Mapping[str, KnownAdapter],
    known: Iterable[KnownAdapter],
    send: Callable[[ManageAdapters], None],
) -> None:
    """Have an engine load and unload, so that it has those that are wanted.

    Args:
        adapters: What its client knows of them, which is what is wanted from here on.
        known: Those that it has.
    """
    orders = list(_restoring_orders(wanted, known))
    adapters.known = dict(wanted)
    for order in orders:
        send(ManageAdapters(RESTORING, order))


def _restoring_orders(
    wanted: Mapping[str, KnownAdapter], known: Iterable[KnownAdapter]
) -> Iterator[AdapterOrder]:
    there = {each.name for each in known}
    for name in there - set(wanted):
        yield UnloadAdapter(name)
    for name, adapter in wanted.items():
        if name not in there:
            yield LoadAdapter(name, adapter.path)
