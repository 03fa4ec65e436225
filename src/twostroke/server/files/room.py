"""How many bytes all tenants may store, and each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class NoRoomError(Exception):
    """What is to be stored does not fit.

    Attributes:
        tenant: Whose it is; empty where there are no keys.
        stored: Bytes that the tenant has stored.
        total: Bytes that all have stored.
        limit: Most bytes of all.
    """

    def __init__(self, tenant: str, stored: int, total: int, limit: int) -> None:
        super().__init__(tenant, stored, total, limit)
        self.tenant, self.stored, self.total, self.limit = tenant, stored, total, limit


class Room:
    """The bytes of one store.

    A tenant may store as much as remains free after it, so that there is always room for another;
    where there are no keys, all of it.

    Args:
        sizes: What tenants have stored already.
    """

    def __init__(self, limit: int, sizes: Mapping[str, int]) -> None:
        self._limit = limit
        self._sizes = Counter(sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes that all tenants have stored."""
        return self._sizes.total()

    def check(self, tenant: str, num_bytes: int) -> None:
        """Raise ``NoRoomError`` unless a tenant may store this many bytes more."""
        stored = self._sizes[tenant]
        total = self._sizes.total()
        free_then = self._limit - total - num_bytes
        if free_then < (stored + num_bytes if tenant else 0):
            raise NoRoomError(tenant, stored, total, self._limit)

    def take(self, tenant: str, num_bytes: int) -> None:
        """Count bytes that are to be stored.

        Raises:
            NoRoomError: They do not fit.
        """
        self.check(tenant, num_bytes)
        self.count(tenant, num_bytes)

    def count(self, tenant: str, num_bytes: int) -> None:
        """Count bytes that are stored, whether or not they fit; negative: that are not any more."""
        self._sizes[tenant] += num_bytes
        if not self._sizes[tenant]:
            del self._sizes[tenant]
