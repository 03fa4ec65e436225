"""What is stored stays within its room, is its tenant's alone, and is gone when it has expired."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from twostroke.core.errors import ConfigError
from twostroke.server.files.room import NoRoomError
from twostroke.server.files.table import FilePart, FileTable, StoredFile

LIMIT = 20_000
TENANTS = ("", "a", "b")


def new_file(file_id: str, tenant: str = "a", state: str = "uploading") -> StoredFile:
    return StoredFile(file_id, tenant, "", "", state, 0, 0)  # type: ignore[arg-type]


class Files(RuleBasedStateMachine):
    """Beside a plain model of what each file holds."""

    ids = Bundle("ids")

    @initialize()
    def open(self) -> None:
        self.now = 100.0
        self.table = FileTable(None, LIMIT, lambda: self.now)
        self.tenants: dict[str, str] = {}
        self.contents: dict[str, dict[int, bytes]] = {}
        self.ready: dict[str, int] = {}
        self.number = 0

    @rule(target=ids, tenant=st.sampled_from(TENANTS), state=st.sampled_from(["growing"]))
    def begin(self, tenant: str, state: str) -> object:
        self.number += 1
        file_id = f"file-{self.number}"
        try:
            self.table.begin(new_file(file_id, tenant, state))
        except NoRoomError:
            return multiple()
        self.tenants[file_id], self.contents[file_id] = tenant, {}
        return file_id

    @rule(file_id=ids, sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=3))
    def append(self, file_id: str, sizes: list[int]) -> None:
        if file_id not in self.contents:
            return
        contents = self.contents[file_id]
        first = max(contents, default=0) + 2  # numbers may have gaps
        parts = [FilePart(first + i, bytes([i]) * size) for i, size in enumerate(sizes)]
        try:
            self.table.append(file_id, parts)
        except NoRoomError as error:
            assert error.total <= LIMIT
            return
        contents |= {part.number: part.data for part in parts}

    @rule(file_id=ids, num_bytes=st.integers(0, 3000))
    def reserve(self, file_id: str, num_bytes: int) -> None:
        if file_id in self.contents:
            before = self.table.room.num_bytes
            try:
                self.table.reserve(file_id, num_bytes)
            except NoRoomError:
                return
            self.table.release(file_id, num_bytes // 2)
            self.table.settle(file_id)
            assert self.table.room.num_bytes == before

    @rule(file_id=ids, seconds=st.integers(1, 50))
    def finish(self, file_id: str, seconds: int) -> None:
        if file_id in self.contents:
            expires = int(self.now) + seconds
            self.table.finish(file_id, "name", "batch", expires)
            self.ready[file_id] = expires

    @rule(file_id=consumes(ids))
    def delete(self, file_id: str) -> None:
        assert self.table.delete(file_id) == (file_id in self.contents)
        self.contents.pop(file_id, None)
        self.ready.pop(file_id, None)

    @rule(seconds=st.integers(0, 30), used=st.none() | ids)
    def pass_time(self, seconds: int, used: str | None) -> None:
        self.now += seconds
        self.table.delete_expired([] if used is None else [used])
        for file_id, expires in [*self.ready.items()]:
            if expires <= self.now and file_id != used:
                del self.ready[file_id], self.contents[file_id]

    @invariant()
    def is_what_was_written(self) -> None:
        for tenant in TENANTS:
            readable = [
                file_id
                for file_id, expires in self.ready.items()
                if self.tenants[file_id] == tenant and expires > self.now
            ]
            files = self.table.page(tenant, ["batch"], None, 100, newest_first=False)
            assert [file.id for file in files] == sorted(readable, key=lambda i: int(i[5:]))
            for file_id in self.contents:
                found = self.table.get(tenant, file_id, ["batch"])
                assert (found is not None) == (file_id in readable)
                assert self.table.get(tenant, file_id, ["batch_output"]) is None
        for file_id, contents in self.contents.items():
            assert self.table.part_numbers(file_id) == contents.keys()
            read: dict[int, bytes] = {}
            after = -1
            while parts := self.table.read(file_id, after, 3000):
                after = parts[-1].number
                read |= dict(parts)
            assert read == contents

    @invariant()
    def keeps_within_its_room(self) -> None:
        assert 0 <= self.table.room.num_bytes <= LIMIT
        stored = sum(len(data) for each in self.contents.values() for data in each.values())
        assert stored <= self.table.room.num_bytes

    def teardown(self) -> None:
        if hasattr(self, "table"):
            for file_id in self.contents:
                self.table.delete(file_id)
            assert self.table.room.num_bytes == 0
            self.table.close()


Files.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFiles = Files.TestCase


def test_a_tenant_leaves_room_for_others() -> None:
    """However many come, and however much each sends."""
    table = FileTable(None, 2**20, lambda: 0.0)
    for number in range(8):
        tenant = f"t{number}"
        table.begin(new_file(tenant, tenant))
        try:
            for part in range(100_000):
                table.append(tenant, [FilePart(part, b"x" * 50)])
        except NoRoomError as error:
            assert (error.tenant, error.limit) == (tenant, 2**20)
        assert table.part_numbers(tenant)
    table.close()


def test_what_was_being_sent_is_forgotten(tmp_path: Path) -> None:
    path = str(tmp_path / "files")
    table = FileTable(path, 2**20, lambda: 0.0)
    for name, state in (("a", "uploading"), ("b", "growing"), ("c", "uploading")):
        table.begin(new_file(name, state=state))
        table.append(name, [FilePart(0, b"x" * 100)])
    table.finish("c", "name", "batch", 100)
    before = table.room.num_bytes
    table.close()
    table = FileTable(path, 2**20, lambda: 0.0)
    assert not table.delete("a") and table.read("b", -1, 1) == [FilePart(0, b"x" * 100)]
    (file,) = table.page("a", ["batch"], None, 10, newest_first=True)
    assert (file.id, file.num_bytes) == ("c", 100)
    assert table.room.num_bytes == before * 2 // 3
    assert oct((tmp_path / "files").stat().st_mode)[-3:] == "600"
    with pytest.raises(ConfigError, match="--files-store"):
        FileTable(path, 2**20, lambda: 0.0)
    table.close()
