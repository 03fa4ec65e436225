"""What a front end knows of the adapters of an engine in another process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from twostroke.engine.adapters.orders import (
    AdapterOrder,
    KnownAdapter,
    LoadAdapter,
    UnloadAdapter,
)
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.messages import AdaptersAnswer, ManageAdapters

logger = logging.getLogger(__name__)
RESTORING = -1  # number of the orders by which a new engine gets the adapters of the last one


class AdapterMirror:
    """Keeps what an engine has, and gives the next one the same; on the event loop's thread.

    Args:
        adapters: What its client knows of them, which is what is wanted of the next engine.
        send: Sends an order to the engine that runs.
    """

    def __init__(self, adapters: Adapters, send: Callable[[ManageAdapters], None]) -> None:
        self._adapters, self._send = adapters, send

    def take(self, answer: AdaptersAnswer) -> None:
        """An engine has loaded or unloaded, or could not."""
        if answer.number != RESTORING and answer.value is not None:
            self.will_have(answer.value)
        elif answer.number == RESTORING and answer.error is not None:
            logger.error("an engine that is back lacks an adapter: %s", answer.error.message)

    def will_have(self, changed: KnownAdapter) -> None:
        """Know what is loaded, and forget what is unloaded: a known one."""
        self._adapters.known = self._with(changed)

    def make_up_for(self, changed: KnownAdapter) -> None:
        """Have the engine load or unload what it could not when it was asked.

        It may be back by now, and have got what was wanted before.
        """
        self.become(self._with(changed))

    def _with(self, changed: KnownAdapter) -> dict[str, KnownAdapter]:
        by_name = dict(self._adapters.known)
        if by_name.pop(changed.name, None) is None:
            by_name[changed.name] = changed
        return by_name

    def restore(self, known: Iterable[KnownAdapter]) -> None:
        """Have a new engine, which knows these, get those that are wanted."""
        self._become(self._adapters.known, known)

    def become(self, wanted: Mapping[str, KnownAdapter]) -> None:
        """Have the engine load and unload, so that it has these."""
        self._become(wanted, self._adapters.known.values())

    def _become(self, wanted: Mapping[str, KnownAdapter], known: Iterable[KnownAdapter]) -> None:
        orders = list(_restoring_orders(wanted, known))
        self._adapters.known = dict(wanted)
        for order in orders:
            self._send(ManageAdapters(RESTORING, order))


def _restoring_orders(
    wanted: Mapping[str, KnownAdapter], known: Iterable[KnownAdapter]
) -> Iterator[AdapterOrder]:
    there = {each.name for each in known}
    for name in there - set(wanted):
        yield UnloadAdapter(name)
    for name, adapter in wanted.items():
        if name not in there:
            yield LoadAdapter(name, adapter.path)
