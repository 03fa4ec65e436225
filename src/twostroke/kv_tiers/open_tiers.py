"""From the configuration to the tiers below an executor's KV cache."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.core.kv_tier_config import NO_EXCHANGE, KVTierConfig, KVTransferConfig, peer_name
from twostroke.core.network.proofs import read_token
from twostroke.kv_cache.connector import KVConnector, TierInfo
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.disk_folder import DiskFolder
from twostroke.kv_tiers.disk_tier import DiskTier
from twostroke.kv_tiers.memory_tier import MemoryTier
from twostroke.kv_tiers.outbox import Outbox
from twostroke.kv_tiers.peer_tier import Peers, PeerTier
from twostroke.kv_tiers.transfers import BlockMemory, Transfers

logger = logging.getLogger(__name__)

SWAP_FOLDER = "twostroke-swap-"
# Younger ones may be those of a process that has not locked its own yet.
LEFT_BEHIND_SECONDS = 60.0


def open_transfers(
    config: KVTierConfig,
    memory: BlockMemory,
    kind: BlockKind,
    *,
    on_gpu: bool,
    exchange: KVTransferConfig = NO_EXCHANGE,
) -> Transfers | None:
    """Open what is configured; ``None`` without tiers.

    Swapped blocks lie in host memory where the KV cache is elsewhere, and otherwise in files.

    Raises:
        ConfigError: A folder cannot be used, or a size is less than a block.
    """
    if not (config.needs_tiers or exchange.is_used):
        return None
    wake = threading.Event()
    with contextlib.ExitStack() as opened:  # what is open when another cannot be opened is closed
        disk = None
        if config.kv_disk is not None:
            disk = _open_disk(config, Path(config.kv_disk), kind, wake)
            opened.callback(disk.close)
        tiers: dict[str, KVConnector] = {}
        if config.preemption != "recompute":
            info = _info("swap", "--swap-space", config.swap_space, kind, for_swap=True)
            tiers["swap"] = (
                _in_memory(info, "--swap-space")
                if on_gpu
                else _swap_files(config, info, kind, wake)
            )
            opened.callback(tiers["swap"].close)
        if config.kv_host_memory:
            flag = "--kv-host-memory"
            tiers["host"] = _in_memory(_info("host", flag, config.kv_host_memory, kind), flag)
        if disk is not None:
            tiers["disk"] = disk
        for name, tier in _open_exchange(exchange, kind, wake):
            tiers[name] = tier
            opened.callback(tier.close)
        peers = _peers(exchange, kind, wake) if exchange.kv_fetched_by_address else None
        opened.pop_all()
    return Transfers(tiers, memory, wake, config.kv_load_share, peers=peers)


def _peers(config: KVTransferConfig, kind: BlockKind, wake: threading.Event) -> Peers:
    size = kind.payload_bytes
    info = TierInfo(name="peers", num_blocks=0, block_bytes=size, loads_only=True, by_address=True)
    return Peers(info, kind, wake, read_token(config.kv_token_file))


def _open_exchange(
    config: KVTransferConfig, kind: BlockKind, wake: threading.Event
) -> Iterator[tuple[str, KVConnector]]:
    """What is offered to other engines, and what they offer."""
    if config.kv_offered_at is not None:
        size = config.kv_offered_memory
        info = _info("offered", "--prefill-memory", size, kind, saves_filled=True)
        token = read_token(config.kv_token_file)
        yield info.name, Outbox(info, config.kv_offered_at, kind, token)
    for number, place in enumerate(config.kv_fetched_from):
        info = TierInfo(
            name=peer_name(number),
            num_blocks=0,
            block_bytes=kind.payload_bytes,
            loads_only=True,
        )
        yield info.name, PeerTier(info, place, kind, wake)


def _in_memory(info: TierInfo, flag: str) -> MemoryTier:
    try:
        return MemoryTier(info)
    except (OSError, OverflowError, MemoryError) as error:
        size = format_bytes(info.num_blocks * info.block_bytes)
        raise ConfigError(
            f"{flag}: this machine does not give {size} of memory", hint=f"lower {flag}"
        ) from error


def _open_disk(
    config: KVTierConfig, path: Path, kind: BlockKind, wake: threading.Event
) -> DiskTier:
    info = _info("disk", "--kv-disk-size", config.kv_disk_size, kind, saves_filled=True)
    return DiskTier(info, DiskFolder(path, kind), config.kv_disk_size, wake)


def _info(
    name: str,
    flag: str,
    size: int,
    kind: BlockKind,
    *,
    saves_filled: bool = False,
    for_swap: bool = False,
) -> TierInfo:
    block_bytes = kind.payload_bytes
    if size < kind.file_bytes:
        raise ConfigError(
            f"{flag} of {size} bytes is less than one KV block of {kind.file_bytes} bytes",
            hint=f"give {flag} much more, or leave it out",
        )
    num_blocks = size // (kind.file_bytes if name == "disk" or for_swap else block_bytes)
    return TierInfo(
        name=name,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        saves_filled=saves_filled,
        for_swap=for_swap,
    )


class _SwapFolder(DiskFolder):
    """A folder that goes with its owner."""

    def __init__(self, path: Path, kind: BlockKind) -> None:
        super().__init__(path, kind, flag="--swap-space")

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        super().close()


def _swap_files(
    config: KVTierConfig, info: TierInfo, kind: BlockKind, wake: threading.Event
) -> DiskTier:
    parent = Path(config.kv_disk or tempfile.gettempdir())
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left_behind(parent, kind)
        path = Path(tempfile.mkdtemp(prefix=SWAP_FOLDER, dir=parent))
    except OSError as error:
        raise ConfigError(
            f"--swap-space: no folder in {parent}: {error.strerror}",
            hint="set TMPDIR, or give --kv-disk",
        ) from error
    return DiskTier(info, _SwapFolder(path, kind), config.swap_space, wake)


def _remove_left_behind(parent: Path, kind: BlockKind) -> None:
    """Remove this user's swap folders whose owners were killed: nobody holds their locks."""
    for path in parent.glob(f"{SWAP_FOLDER}*"):
        with contextlib.suppress(ConfigError, OSError):
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if not is_own or time.time() - status.st_mtime < LEFT_BEHIND_SECONDS:
                continue
            _SwapFolder(path, kind).close()
