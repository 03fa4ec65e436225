"""Protects: a folder of KV blocks gives back what was saved or nothing, whatever happened to it."""

from __future__ import annotations

import logging
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.core.errors import ConfigError
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.block_file import MAGIC, BlockFileError, BlockKind, decode_block
from twostroke.kv_tiers.disk_folder import DiskFolder
from twostroke.kv_tiers.disk_tier import DiskTier

KIND = BlockKind("model@1", "2 tensors bfloat16[16, 1, 8]", 16, 1000)
PATIENCE = 10.0


def key_of(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def block_of(number: int, size: int = KIND.payload_bytes) -> memoryview:
    return memoryview(random.Random(number).randbytes(size))


def open_tier(
    path: Path, kind: BlockKind = KIND, max_blocks: int = 100, *, for_swap: bool = False
) -> DiskTier:
    info = TierInfo(name="disk", num_blocks=max_blocks, for_swap=for_swap)
    return DiskTier(info, DiskFolder(path, kind), max_blocks * kind.file_bytes, threading.Event())


@contextmanager
def opened(path: Path, kind: BlockKind = KIND, max_blocks: int = 100) -> Iterator[DiskTier]:
    tier = open_tier(path, kind, max_blocks)
    try:
        yield tier
    finally:
        tier.close()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)


def written(tier: DiskTier) -> None:
    wait_for(lambda: not tier.num_unwritten())


def load(tier: DiskTier, keys: list[bytes]) -> list[ArrivedBlock]:
    tier.load("request", keys)
    arrived: list[ArrivedBlock] = []

    def come() -> bool:
        arrived.extend(tier.arrived(100))
        return len(arrived) == len(keys)

    wait_for(come)
    return arrived


def num_held(tier: DiskTier, keys: list[bytes]) -> int:
    """How many of the first ``keys`` it holds just now, without a gap."""
    with tier._changed:
        there = [key in tier._unwritten or tier._place(key) in tier._files for key in keys]
    return [*there, False].index(False)


def files_of(path: Path) -> list[Path]:
    return sorted(path.glob("*/*.kv"))


def test_a_restart_finds_what_was_saved(tmp_path: Path) -> None:
    keys = [key_of(number) for number in range(5)]
    with opened(tmp_path) as tier:
        for number, key in enumerate(keys):
            assert tier.save(key, block_of(number))
        assert set(tier.changes().stored) == set(keys)
    with opened(tmp_path) as tier:
        assert set(tier.info.keys) == set(keys)
        assert num_held(tier, keys) == 5 and num_held(tier, [key_of(9), *keys]) == 0
        for number, block in enumerate(load(tier, keys)):
            assert block.data == block_of(number)


def test_a_block_can_be_loaded_before_it_is_written(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for number in range(20):
        tier.save(key_of(number), block_of(number))
        (block,) = load(tier, [key_of(number)])
        assert block.data == block_of(number)
    tier.close()


def test_a_block_that_is_saved_anew_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first bytes, dropped as wrong, stayed under its key; the right ones were lost."""
    goes_on, began = threading.Event(), threading.Event()
    write = DiskFolder.write

    def slow(self: DiskFolder, key: bytes, payload: memoryview) -> int:
        began.set()
        goes_on.wait(PATIENCE)
        return write(self, key, payload)

    monkeypatch.setattr(DiskFolder, "write", slow)
    key = key_of(0)
    with opened(tmp_path) as tier:
        tier.save(key, block_of(1))
        assert began.wait(PATIENCE)
        tier.drop([key])
        tier.save(key, block_of(2))
        goes_on.set()
        written(tier)
        assert tier.changes().stored == [key]
        (block,) = load(tier, [key])
        assert block.data == block_of(2)
    with opened(tmp_path) as tier:
        (block,) = load(tier, [key])
        assert block.data == block_of(2)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    """Also after a restart: a load counts as a use, and files remember it."""
    with opened(tmp_path) as tier:
        for number in range(4):
            tier.save(key_of(number), block_of(number))
            written(tier)
            time.sleep(0.01)  # times of files are those of the clock's last tick
        load(tier, [key_of(0)])
    with opened(tmp_path, max_blocks=3) as tier:
        assert set(tier.info.keys) == {key_of(0), key_of(2), key_of(3)}
        tier.save(key_of(7), block_of(7))
        written(tier)
        change = tier.changes()
        assert change.stored == [key_of(7)] and change.removed == [key_of(2)]
        wait_for(lambda: len(files_of(tmp_path)) == 3)


def test_swap_space_forgets_nothing_of_itself(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, max_blocks=2, for_swap=True)
    assert tier.save(key_of(0), block_of(0)) and tier.save(key_of(1), block_of(1))
    assert not tier.save(key_of(2), block_of(2))
    tier.drop([key_of(0)])
    assert tier.save(key_of(2), block_of(2))
    tier.close()


def test_one_process_owns_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(ConfigError, match=r"in use by another process \(pid"):
        open_tier(tmp_path)
    with opened(tmp_path):
        pass  # the lock is free again


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_broken_file_is_refused_and_nothing_else_notices(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One byte changed anywhere, the file cut off anywhere or made longer: that block is gone."""
    path = tmp_path_factory.mktemp("broken")
    with opened(path) as tier:
        for number in range(3):
            tier.save(key_of(number), block_of(number))
    victim = next(file for file in files_of(path) if file.stem == key_of(1).hex())
    content = bytearray(victim.read_bytes())
    match data.draw(st.sampled_from(["change", "cut", "grow"])):
        case "change":
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] ^= data.draw(st.integers(1, 255))
        case "cut":
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        case _:
            content += b"more"
    is_late = data.draw(st.booleans())  # while the process runs
    if not is_late:
        victim.write_bytes(content)
    with opened(path) as tier:
        if is_late:
            victim.write_bytes(content)
        blocks = {block.key: block.data for block in load(tier, [key_of(n) for n in range(3)])}
        assert blocks[key_of(1)] is None
        assert blocks[key_of(0)] == block_of(0) and blocks[key_of(2)] == block_of(2)
        wait_for(lambda: not victim.exists())
        assert tier.save(key_of(1), block_of(1))  # it was computed again
    with opened(path) as tier:
        assert load(tier, [key_of(1)])[0].data == block_of(1)


def test_a_header_that_no_parser_takes_ends_no_thread(tmp_path: Path) -> None:
    """Its checksum is right, and it is nested too deeply: others are read after it."""
    kind = KIND._replace(payload_bytes=1_000_000)
    with opened(tmp_path, kind) as tier:
        for number in range(2):
            tier.save(key_of(number), block_of(number, kind.payload_bytes))
    file = next(file for file in files_of(tmp_path) if file.stem == key_of(0).hex())
    size, header = file.stat().st_size, b"[" * 500_000
    head = MAGIC + struct.pack("<II", len(header), crc32(header)) + header
    file.write_bytes(head.ljust(size, b" "))
    with opened(tmp_path, kind) as tier:
        bad, good = load(tier, [key_of(0), key_of(1)])
        assert bad.data is None and good.data == block_of(1, kind.payload_bytes)


def test_another_models_files_are_left_alone_until_room_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = KIND._replace(model="model@2")
    with opened(tmp_path, other) as tier:
        for number in range(3):
            tier.save(key_of(number), block_of(number))
    with caplog.at_level(logging.WARNING), opened(tmp_path, max_blocks=4) as tier:
        assert tier.info.keys == []
        for number in range(3):
            tier.save(key_of(number), block_of(number))
            written(tier)
        assert num_held(tier, [key_of(n) for n in range(3)]) == 3
    assert len(caplog.records) == 1 and "3 blocks of other models" in caplog.text
    assert len(files_of(tmp_path)) == 4


def test_a_file_that_was_moved_from_another_model_is_refused(tmp_path: Path) -> None:
    """Its name and size are right; its header is not."""
    other = KIND._replace(model="model@2")
    with opened(tmp_path, other) as tier:
        tier.save(key_of(0), block_of(0))
    with opened(tmp_path) as tier:
        tier.save(key_of(0), block_of(0))
    here, there = files_of(tmp_path)
    content = {here: there.read_bytes(), there: here.read_bytes()}
    for file, data in content.items():
        file.write_bytes(data)
    with opened(tmp_path) as tier:
        assert load(tier, [key_of(0)])[0].data is None


def test_the_header_says_whose_a_block_is() -> None:
    with pytest.raises(BlockFileError, match="cut off"):
        decode_block(memoryview(b"2STROKE"), KIND, key_of(0))
    with pytest.raises(BlockFileError, match="no file of KV blocks"):
        decode_block(memoryview(bytes(64)), KIND, key_of(0))


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither as a block's file, nor as the lock, nor as a folder of blocks."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"precious")
    path = tmp_path / "cache"
    with opened(path) as tier:
        tier.save(key_of(0), block_of(0))
    (file,) = files_of(path)
    good = file.read_bytes()
    (tmp_path / "elsewhere").write_bytes(good)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with opened(path) as tier:
        assert num_held(tier, [key_of(0)]) == 0
        part = file.with_name(key_of(1).hex() + ".part")
        file.unlink()
        part.symlink_to(secret)
        assert tier.save(key_of(1), block_of(1))
        written(tier)
        # It does not stand in the way of the block's file either.
        assert part.is_symlink() and num_held(tier, [key_of(1)]) == 1
        assert load(tier, [key_of(1)])[0].data == block_of(1)
    assert secret.read_bytes() == b"precious"
    with opened(path):
        assert not part.is_symlink()
    (path / "lock").unlink()
    (path / "lock").symlink_to(secret)
    with pytest.raises(ConfigError, match="--kv-disk"):
        open_tier(path)
    assert secret.read_bytes() == b"precious"


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="--kv-disk"):
        open_tier(file)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """They hold what people asked."""
    path = tmp_path / "cache"
    with opened(path) as tier:
        tier.save(key_of(0), block_of(0))
    assert path.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in files_of(path))


@pytest.mark.parametrize(("mode", "warns"), [(0o700, False), (0o755, False), (0o777, True)])
def test_a_folder_that_others_may_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    tmp_path.chmod(mode)
    with caplog.at_level(logging.WARNING), opened(tmp_path):
        pass
    assert ("other users may write here" in caplog.text) is warns


def test_a_full_device_costs_blocks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails: the block is reported as lost, the tier goes on."""
    tier = open_tier(tmp_path)
    failing = True
    write = DiskFolder.write

    def fail(self: DiskFolder, key: bytes, payload: memoryview) -> int:
        if failing:
            raise OSError(28, "No space left on device")
        return write(self, key, payload)

    monkeypatch.setattr(DiskFolder, "write", fail)
    tier.save(key_of(0), block_of(0))
    written(tier)
    wait_for(lambda: num_held(tier, [key_of(0)]) == 0)
    assert tier.changes().removed == [key_of(0)]
    failing = False
    tier.save(key_of(1), block_of(1))
    written(tier)
    assert load(tier, [key_of(1)])[0].data == block_of(1)
    tier.close()


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.kv_tiers.test_disk import block_of, key_of, open_tier
tier = open_tier(Path({folder!r}), max_blocks=60)
print("ready", flush=True)
number = {first}
while True:
    if tier.save(key_of(number), block_of(number)):
        number += 1
"""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path, delay: float) -> None:
    """Twice in a row: whatever the folder then says that it has is whole."""
    for round_number in range(2):
        script = WRITER.format(
            path=[str(Path(__file__).parents[2]), *sys.path],
            folder=str(tmp_path),
            first=round_number * 10**6,
        )
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(PATIENCE)
        numbers = {key_of(n): n for first in (0, 10**6) for n in range(first, first + 20000)}
        with opened(tmp_path, max_blocks=60) as tier:
            keys = [key for key in tier.info.keys if isinstance(key, bytes)]
            assert len(keys) <= 60
            for block in load(tier, keys):
                assert isinstance(block.key, bytes)
                assert block.data == block_of(numbers[block.key])
        assert not list(tmp_path.glob("*/*.part"))
