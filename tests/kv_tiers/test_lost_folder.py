"""Protects: a folder of KV blocks that cannot be used is one clear line; a lost one comes back."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kv_tiers.test_disk import (
    KIND,
    block_of,
    files_of,
    key_of,
    load,
    num_held,
    open_tier,
    opened,
    wait_for,
    written,
)
from twostroke.core.errors import ConfigError
from twostroke.kv_tiers.disk_folder import DiskFolder


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, said in ((file, "is a file"), (file / "below", "Not a directory")):
        with pytest.raises(ConfigError) as caught:
            open_tier(path)
        assert caught.value.message in (f"--kv-disk {path} {said}", f"--kv-disk {path}: {said}")
        assert caught.value.hint


@pytest.mark.parametrize("refused", ["mkdir", "open"])
def test_a_folder_without_permission(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as a user who may do anything, so the system's answer is put in."""

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, refused, refuse)
        with pytest.raises(ConfigError) as caught:
            open_tier(tmp_path / "cache")
    assert caught.value.message == f"--kv-disk {tmp_path / 'cache'}: Permission denied"
    assert caught.value.hint == "give a folder that this user may write"


def remove_all(path: Path) -> None:
    shutil.rmtree(path)


def remove_contents(path: Path) -> None:
    for entry in path.iterdir():
        entry.unlink() if entry.is_file() else shutil.rmtree(entry)


def remove_blocks(path: Path) -> None:
    for folder in path.glob("*/"):
        shutil.rmtree(folder)


def replace(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("lose", [remove_all, remove_contents, remove_blocks, replace])
@pytest.mark.parametrize("for_swap", [False, True])
def test_a_folder_that_is_removed_is_made_again(
    lose: Callable[[Path], None], for_swap: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No block could be written any more until the next start, and lost ones counted as there."""
    path = tmp_path / "cache"
    tier = open_tier(path, for_swap=for_swap)
    for number in range(3):
        tier.save(key_of(number), block_of(number))
    written(tier)
    tier.changes()
    lose(path)
    with caplog.at_level(logging.WARNING):
        assert tier.save(key_of(9), block_of(9))
        written(tier)
    assert caplog.text.count("it has been made again") == 1
    assert set(tier.changes().removed) == {key_of(number) for number in range(3)}
    assert num_held(tier, [key_of(0)]) == 0 and num_held(tier, [key_of(9)]) == 1
    assert [block.data for block in load(tier, [key_of(0), key_of(9)])] == [None, block_of(9)]
    assert tier.save(key_of(0), block_of(0))  # it was computed again
    written(tier)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_tier(path)
    tier.close()
    with opened(path) as again:
        assert set(again.info.keys) == {key_of(0), key_of(9)}


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    before = len(list(Path("/proc/self/fd").iterdir()))
    with opened(path) as tier:
        for number in range(5):
            tier.save(key_of(number), block_of(number))
            written(tier)
            remove_all(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_folder_that_another_process_has_made_is_left_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks are lost, nothing else; the other's stay as they are."""
    path = tmp_path / "cache"
    with opened(path) as tier, caplog.at_level(logging.WARNING):
        tier.save(key_of(0), block_of(0))
        written(tier)
        remove_all(path)
        with opened(path) as other:
            other.save(key_of(1), block_of(1))
            written(other)
            tier.save(key_of(2), block_of(2))
            wait_for(lambda: num_held(tier, [key_of(2)]) == 0)
            assert len(files_of(path)) == 1
        assert "in use by another process" in caplog.text
        tier.save(key_of(3), block_of(3))
        written(tier)
        assert num_held(tier, [key_of(1), key_of(3)]) == 2  # it is this one's again


def test_a_folder_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder for all, such as that of swapped blocks, another may have been faster."""
    path = tmp_path / "cache"
    folder = DiskFolder(path, KIND)
    remove_all(path)
    path.mkdir()
    held, fstat = folder._held, os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if descriptor in held:
            return status
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", of_another)
        with pytest.raises(ConfigError, match="belongs to another user now"):
            folder.restore()
    folder.close()


def test_a_damaged_file_goes_when_it_is_met(tmp_path: Path) -> None:
    """While the server runs; its block is computed again and written."""
    with opened(tmp_path) as tier:
        tier.save(key_of(0), block_of(0))
        written(tier)
        (file,) = files_of(tmp_path)
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        assert load(tier, [key_of(0)])[0].data is None
        wait_for(lambda: not file.exists())
        assert tier.save(key_of(0), block_of(0))
        written(tier)
        assert load(tier, [key_of(0)])[0].data == block_of(0)
