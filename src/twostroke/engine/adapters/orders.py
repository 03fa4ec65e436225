"""Orders on the adapters of a running engine, and what is known of one: plain data."""

from __future__ import annotations

import msgspec


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load the adapter in a folder under a name."""

    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget the adapter of a name."""

    name: str


AdapterOrder = LoadAdapter | UnloadAdapter


class KnownAdapter(msgspec.Struct, frozen=True):
    """An adapter by its name.

    Attributes:
        digest: A hash of its contents.
        rank: The highest of its modules.
        created: Unix time at which it was loaded.
    """

    name: str
    path: str
    digest: str
    rank: int
    nbytes: int
    created: int

    @property
    def identity(self) -> str:
        """What requests carry, and cached keys and values are kept apart by."""
        return f"{self.name}@{self.digest}"


class AdapterReport(msgspec.Struct, frozen=True):
    """What became of an order.

    Attributes:
        engines: Where there are several, by name: that it has done it, or when it will, and why.
    """

    adapter: KnownAdapter
    engines: dict[str, str] = {}
