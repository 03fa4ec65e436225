"""Protects: loads take no more of a step than they may, and what opens also closes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.core.kv_tier_config import BlockTransfer, KVTierConfig, TierChange
from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_tiers import disk_tier
from twostroke.kv_tiers import transfers as transfers_module
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.disk_folder import DiskFolder
from twostroke.kv_tiers.disk_tier import DiskTier
from twostroke.kv_tiers.memory_tier import MemoryTier
from twostroke.kv_tiers.open_tiers import SWAP_FOLDER, open_transfers
from twostroke.kv_tiers.outbox import Outbox
from twostroke.kv_tiers.peer_tier import Peers
from twostroke.kv_tiers.transfers import CHUNK_BYTES, LEAST_DELAY, Transfers

KIND = BlockKind("model@1", "tensors", 16, 64)


class SlowMemory:
    """Blocks of 1 MiB whose copies take a second of a clock of their own."""

    block_bytes = 1 << 20

    def __init__(self) -> None:
        self.now = 0.0
        self.written: dict[int, bytes] = {}

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        return [memoryview(bytes([block]) * self.block_bytes) for block in block_ids]

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        for block, data in zip(block_ids, blocks, strict=True):
            self.written[block] = bytes(data[:1])
            self.now += 1.0


def plan_with(*, runs: bool, **moves: list[BlockTransfer]) -> StepPlan:
    plan = StepPlan(0, 0.0, **moves)  # type: ignore[arg-type]
    if runs:
        plan.add(ScheduledRequest("other", 0, 1, True))
    return plan


def test_a_step_copies_no_more_than_its_share() -> None:
    """Seven chunks of four seconds each wait; a step of 100 s may take ten more."""
    memory, num_blocks = SlowMemory(), 28
    tier = MemoryTier(TierInfo(name="host", num_blocks=40, block_bytes=memory.block_bytes))
    transfers = Transfers({"host": tier}, memory, threading.Event(), 0.1, lambda: memory.now)
    ids, keys = list(range(num_blocks)), [bytes([n]) for n in range(num_blocks)]
    save = BlockTransfer("", ids, [*keys], "host")
    transfers.begin(plan_with(runs=True, block_saves=[save]))
    places = [100 + n for n in ids]
    load = BlockTransfer("request", places, [*keys], "host")
    transfers.begin(plan_with(runs=True, block_loads=[load]))
    chunk = CHUNK_BYTES // memory.block_bytes
    for step_number in range(1, 4):
        result = StepResult()
        transfers.advance(plan_with(runs=True), result, 100.0)
        done = min(num_blocks, step_number * 3 * chunk)  # the third chunk goes beyond ten seconds
        assert len(memory.written) == done
        assert result.loaded == (["request"] if done == num_blocks else [])
    assert memory.written == {100 + n: bytes([n]) for n in ids}


def test_short_steps_get_blocks_too() -> None:
    """One chunk at least, however short the step."""
    memory = SlowMemory()
    tier = MemoryTier(TierInfo(name="host", num_blocks=4, block_bytes=memory.block_bytes))
    transfers = Transfers({"host": tier}, memory, threading.Event(), 0.1, lambda: memory.now)
    transfers.begin(plan_with(runs=True, block_saves=[BlockTransfer("", [1], [b"a"], "host")]))
    transfers.begin(plan_with(runs=True, block_loads=[BlockTransfer("r", [2], [b"a"], "host")]))
    result = StepResult()
    transfers.advance(plan_with(runs=True), result, 0.0)
    assert LEAST_DELAY < 1.0 and result.loaded == ["r"]
    (change,) = result.tier_changes
    assert change == TierChange("host", [b"a"], [], num_loaded=1, load_seconds=1.0)


def test_a_load_of_what_is_not_there_fails_and_writes_nothing() -> None:
    memory = SlowMemory()
    tier = MemoryTier(TierInfo(name="host", num_blocks=4, block_bytes=memory.block_bytes))
    transfers = Transfers({"host": tier}, memory, threading.Event(), 0.1, lambda: memory.now)
    transfers.begin(plan_with(runs=False, block_loads=[BlockTransfer("r", [2], [b"a"], "host")]))
    result = StepResult()
    transfers.advance(plan_with(runs=False), result, 0.0)
    assert (result.failed_loads, result.loaded, memory.written) == (["r"], [], {})
    assert result.tier_changes == [TierChange("host", [], [b"a"])]


class BrokenMemory(SlowMemory):
    """As a GPU that has no room for the copy."""

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        raise RuntimeError("out of memory")


def test_a_load_whose_copy_fails_is_no_loaded_one() -> None:
    """Its blocks hold what they held before: nobody may find them under the new keys."""
    memory = BrokenMemory()
    tier = MemoryTier(TierInfo(name="host", num_blocks=4, block_bytes=memory.block_bytes))
    transfers = Transfers({"host": tier}, memory, threading.Event(), 0.1, lambda: memory.now)
    transfers.begin(plan_with(runs=True, block_saves=[BlockTransfer("", [1], [b"a"], "host")]))
    transfers.begin(plan_with(runs=True, block_loads=[BlockTransfer("r", [2], [b"a"], "host")]))
    ended: list[tuple[list[str], list[str]]] = []
    for _ in range(2):
        result = StepResult()
        transfers.advance(plan_with(runs=True), result, 0.0)
        ended.append((result.loaded, result.failed_loads))
    assert ended == [([], ["r"]), ([], [])]


def test_host_memory_forgets_the_least_recently_used() -> None:
    tier = MemoryTier(TierInfo(name="host", num_blocks=2, block_bytes=1))
    for key in (b"a", b"b"):
        assert tier.save(key, memoryview(key))
    tier.load("r", [b"a"])
    assert tier.save(b"c", memoryview(b"c"))
    assert set(tier._slots) == {b"a", b"c"}
    assert tier.changes() == TierChange("host", [b"a", b"c"], [b"b"])
    (block,) = tier.arrived(5)
    assert block.data is not None and bytes(block.data) == b"a"


class NoMemory(SlowMemory):
    block_bytes = KIND.payload_bytes


def swap_folders(path: Path) -> list[Path]:
    return sorted(path.glob(SWAP_FOLDER + "*"))


def test_swap_files_go_with_their_owner(tmp_path: Path) -> None:
    """At its end; after a kill with the next start. Those of an owner that lives are left alone."""
    config = KVTierConfig(preemption="swap", kv_disk=str(tmp_path), swap_space=10**6)
    left_behind = tmp_path / f"{SWAP_FOLDER}killed"
    left_behind.mkdir()
    (left_behind / "lock").touch()
    os.utime(left_behind, (0, 0))
    being_made = tmp_path / f"{SWAP_FOLDER}just-now"
    being_made.mkdir()
    foreign = tmp_path / f"{SWAP_FOLDER}link"
    (tmp_path / "mine").mkdir()
    foreign.symlink_to(tmp_path / "mine")
    first = open_transfers(config, NoMemory(), KIND, on_gpu=False)
    assert first is not None and list(first.tiers) == ["swap", "disk"]
    (own,) = set(swap_folders(tmp_path)) - {foreign, being_made}
    assert own != left_behind
    with pytest.raises(ConfigError, match="in use"):
        open_transfers(config, NoMemory(), KIND, on_gpu=False)
    assert set(swap_folders(tmp_path)) == {
        foreign,
        own,
        being_made,
    }  # what fails leaves nothing behind
    first.close()
    assert not own.exists() and (tmp_path / "mine").is_dir()


def test_beside_a_gpu_swap_is_in_memory(tmp_path: Path) -> None:
    config = KVTierConfig(preemption="auto", swap_space=10**6, kv_host_memory=10**6)
    transfers = open_transfers(config, NoMemory(), KIND, on_gpu=True)
    assert transfers is not None
    assert all(isinstance(tier, MemoryTier) for tier in transfers.tiers.values())
    assert open_transfers(KVTierConfig(), NoMemory(), KIND, on_gpu=True) is None


@pytest.mark.parametrize("flag", ["--kv-host-memory", "--swap-space"])
def test_more_memory_than_there_is_is_a_clear_error(flag: str) -> None:
    size = {flag.removeprefix("--").replace("-", "_"): 1 << 60}
    config = KVTierConfig(preemption="swap", **size)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=flag):
        open_transfers(config, NoMemory(), KIND, on_gpu=True)


def test_sizes_are_read_as_people_write_them() -> None:
    config = KVTierConfig(swap_space=4, kv_disk_size="1GiB")  # type: ignore[arg-type]
    assert (config.swap_space, config.kv_disk_size) == (4 << 30, 1 << 30)
    for wrong in ({"kv_disk_size": "lots"}, {"preemption": "no"}, {"kv_load_share": 0}):
        with pytest.raises(ConfigError, match="--"):
            KVTierConfig(**wrong)


def test_what_a_tier_refuses_is_reported() -> None:
    """Once, with the next step; what cannot be read is as good as refused."""
    memory = SlowMemory()
    tier = MemoryTier(
        TierInfo(name="swap", num_blocks=1, block_bytes=memory.block_bytes, for_swap=True)
    )
    transfers = Transfers({"swap": tier}, memory, threading.Event())
    save = BlockTransfer("", [1, 2, 3], [b"a", b"b", b"c"], "swap")
    plan, result = plan_with(runs=True, block_saves=[save]), StepResult()
    transfers.begin(plan)
    transfers.advance(plan, result, 0.0)
    (change,) = result.tier_changes
    assert (change.stored, change.refused) == ([b"a"], [b"b", b"c"])
    transfers.advance(plan_with(runs=True), result := StepResult(), 0.0)
    assert not result.tier_changes


def test_a_start_that_fails_gives_its_folder_back(tmp_path: Path) -> None:
    """A second try in the same process, as in a notebook, found the first one's lock."""
    wrong = KVTierConfig(kv_disk=str(tmp_path), kv_disk_size=10**6, kv_host_memory=1 << 60)
    right = KVTierConfig(kv_disk=str(tmp_path), kv_disk_size=10**6)
    for _ in range(2):
        with pytest.raises(ConfigError, match="--kv-host-memory"):
            open_transfers(wrong, NoMemory(), KIND, on_gpu=False)
    transfers = open_transfers(right, NoMemory(), KIND, on_gpu=False)
    assert transfers is not None
    transfers.close()


def test_a_large_victim_is_swapped_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files, only what fits the queue of the writer was; and it was copied all at once."""
    monkeypatch.setattr(disk_tier, "MAX_UNWRITTEN", 4 * KIND.payload_bytes)
    monkeypatch.setattr(transfers_module, "SAVE_BYTES", 3 * KIND.payload_bytes)

    class CountingMemory(NoMemory):
        most_at_once = 0

        def read(self, block_ids: Sequence[int]) -> list[memoryview]:
            self.most_at_once = max(self.most_at_once, len(block_ids))
            return [memoryview(bytes([number]) * self.block_bytes) for number in block_ids]

    memory = CountingMemory()
    config = KVTierConfig(preemption="swap", kv_disk=str(tmp_path), swap_space=10**6)
    transfers = open_transfers(config, memory, KIND, on_gpu=False)
    assert transfers is not None
    keys: list[bytes | int] = [bytes([number]) * 16 for number in range(50)]
    save = BlockTransfer("", list(range(50)), keys, "swap")
    transfers.begin(plan_with(runs=True, block_saves=[save]))
    transfers.advance(plan_with(runs=True), result := StepResult(), 0.0)
    transfers.close()
    (change,) = result.tier_changes
    assert change.stored == keys and not change.refused
    assert memory.most_at_once == 3


def test_a_stuck_file_system_refuses_instead_of_holding_steps_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    write = DiskFolder.write

    def stuck(self: DiskFolder, key: bytes, payload: memoryview) -> int:
        goes_on.wait(10)
        return write(self, key, payload)

    monkeypatch.setattr(DiskFolder, "write", stuck)
    monkeypatch.setattr(disk_tier, "MAX_UNWRITTEN", 2 * KIND.payload_bytes)
    monkeypatch.setattr(disk_tier, "STUCK_SECONDS", 0.1)
    info = TierInfo(name="swap", num_blocks=100, for_swap=True)
    tier = DiskTier(info, DiskFolder(tmp_path, KIND), 10**6, threading.Event())
    block, began = memoryview(bytes(KIND.payload_bytes)), time.monotonic()
    taken = [tier.save(bytes([number]) * 16, block) for number in range(50)]
    assert taken == [True] * 2 + [False] * 48
    assert time.monotonic() - began < 3  # one wait, not one for each block
    goes_on.set()
    end = time.monotonic() + 10
    while tier.num_unwritten():
        assert time.monotonic() < end
        time.sleep(0.001)
    assert tier.save(b"x" * 16, block)
    tier.close()


def test_a_tier_that_is_named_by_its_address_is_opened_when_it_is_wanted() -> None:
    memory, wake = SlowMemory(), threading.Event()
    kind = BlockKind("model", "format", 16, memory.block_bytes)
    info = TierInfo(name="offered", num_blocks=4, block_bytes=memory.block_bytes)
    outbox = Outbox(info, "127.0.0.1:0", kind, b"token")
    key = bytes(16)
    outbox.save(key, memoryview(b"7" * memory.block_bytes))
    named = TierInfo(
        name="peers", num_blocks=0, block_bytes=memory.block_bytes, loads_only=True, by_address=True
    )
    transfers = Transfers({}, memory, wake, peers=Peers(named, kind, wake, b"token"))
    assert transfers.infos == [named]
    drop = TierChange("127.0.0.1:1", removed=[key])  # of a peer of which nothing was wanted
    load = BlockTransfer("request", [3], [key], outbox.info.place)
    transfers.begin(StepPlan(0, 0.0, block_drops=[drop], block_loads=[load]))
    result = StepResult()
    deadline = time.monotonic() + 10
    while not result.loaded and time.monotonic() < deadline:
        transfers.advance(StepPlan(0, 0.0), result, 0.0)
    assert result.loaded == ["request"] and memory.written == {3: b"7"}
    assert list(transfers.tiers) == [outbox.info.place]
    transfers.close()
    outbox.close()
