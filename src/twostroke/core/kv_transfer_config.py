"""Which engines give others the KV blocks of prompts: set by what starts them, not by flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from twostroke.core.flags.declared import Must, at_least, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferConfig:
    """Both are Unix sockets in a folder that only this user can open."""

    kv_offered_at: Annotated[str | None, Must("a path", bool)] = None
    """Where other engines fetch blocks that this one has filled."""
    kv_offered_memory: Annotated[int, at_least(1, "a positive size")] = 1 << 30
    """Bytes of host memory for them."""
    kv_fetched_from: tuple[str, ...] = ()
    """Where this engine fetches blocks, by the number of the engine that has them."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_used(self) -> bool:
        return self.kv_offered_at is not None or bool(self.kv_fetched_from)


NO_EXCHANGE = KVTransferConfig()


def peer_name(number: int) -> str:
    """The tier of the blocks that engine ``number`` of those that offer some has."""
    return f"peer{number}"
