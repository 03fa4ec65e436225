"""Where keys and values go when the KV cache is full: the flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from twostroke.core.errors import ConfigError
from twostroke.core.flags.byte_sizes import format_bytes, parse_size
from twostroke.core.flags.values import require

PreemptionName = Literal["recompute", "swap", "auto"]


class DefaultSize(int):
    """Bytes, which the help shows as people write them."""

    def __str__(self) -> str:
        return format_bytes(int(self)).replace(".00", "").replace(" ", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierConfig:
    """Slower memory below the KV cache: answers stay the same, less is computed again."""

    preemption: PreemptionName = "recompute"
    """What happens to the KV blocks of a request that must wait for room: `recompute` drops them,
    `swap` copies them to --swap-space, `auto` does what its measurements say is faster.
    """
    swap_space: int = DefaultSize(4 << 30)
    """Bytes for swapped blocks (accepts 4GiB): host memory beside a GPU; on a CPU temporary files,
    in --kv-disk if that is given. A plain number below 1024 means GiB, as in vLLM.
    """
    kv_host_memory: int = 0
    """Bytes of host memory for prefix blocks that the KV cache evicts; meant for a GPU."""
    kv_disk: str | None = None
    """Folder for prefix blocks. A restarted server finds there what it had; one process owns it."""
    kv_disk_size: int = DefaultSize(20 << 30)
    """Most bytes in --kv-disk; what was used least recently goes first."""
    kv_load_share: float = 0.1
    """How much longer a step may take because loaded blocks are copied into the KV cache."""
    kv_events: bool = False
    """Publish what the KV cache and the tiers store and remove, at /v1/cache/events."""

    def __post_init__(self) -> None:
        names = get_args(PreemptionName)
        require(
            self.preemption in names, "--preemption", self.preemption, "one of " + ", ".join(names)
        )
        for name in ("swap_space", "kv_host_memory", "kv_disk_size"):
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            if isinstance(value, str):
                try:
                    value = parse_size(value)
                except ValueError as error:
                    hint = "write it as 512MiB or 2GiB"
                    raise ConfigError(f"{flag}: {error}", hint=hint) from error
                object.__setattr__(self, name, value)
            least = 0 if name == "kv_host_memory" else 1
            is_size = isinstance(value, int) and not isinstance(value, bool)
            ok = is_size and least <= value < 2**63
            require(ok, flag, value, "a size such as 4GiB")
        if self.swap_space < 1024:
            object.__setattr__(self, "swap_space", self.swap_space << 30)
        ok = self.kv_disk is None or (isinstance(self.kv_disk, str) and bool(self.kv_disk))
        require(ok, "--kv-disk", self.kv_disk, "a folder")
        require(isinstance(self.kv_events, bool), "--kv-events", self.kv_events, "true or false")
        share = self.kv_load_share
        ok = isinstance(share, int | float) and 0 < share <= 10
        require(ok, "--kv-load-share", share, "above 0, at most 10")

    @property
    def needs_tiers(self) -> bool:
        """Whether any block ever leaves the KV cache for another place."""
        return self.preemption != "recompute" or bool(self.kv_host_memory) or bool(self.kv_disk)
