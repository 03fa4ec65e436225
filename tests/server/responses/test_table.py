"""The table of stored responses: bounds hold, keys do not push each other out, chains are whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twostroke.core.errors import ConfigError
from twostroke.server.responses.table import (
    ROW_OVERHEAD,
    BrokenChainError,
    ChainTooLongError,
    ResponseTable,
    StoredResponse,
)

TENANTS = ("", "alice", "bob")


def stored(
    name: str, tenant: str = "", previous: str | None = None, size: int = 0
) -> StoredResponse:
    response = msgspec.json.encode({"output": [{"id": f"out of {name}"}], "pad": "x" * size})
    given = msgspec.json.encode([{"id": f"in of {name}"}])
    return StoredResponse(name, tenant, previous, True, response, given)


class Tables(RuleBasedStateMachine):
    """Against a dictionary that forgets nothing: what the table has is right and within bounds."""

    MAX_BYTES = 20_000

    def __init__(self) -> None:
        super().__init__()
        self.table = ResponseTable(None, self.MAX_BYTES)
        self.put_so_far: dict[str, StoredResponse] = {}
        self.deleted: set[str] = set()

    def teardown(self) -> None:
        self.table.close()

    @rule(tenant=st.sampled_from(TENANTS), size=st.integers(0, 4000), data=st.data())
    def put(self, tenant: str, size: int, data: st.DataObject) -> None:
        name = f"resp_{len(self.put_so_far)}"
        previous = data.draw(st.sampled_from([None, *self.put_so_far]))
        self.put_so_far[name] = stored(name, tenant, previous, size)
        assert self.table.put(self.put_so_far[name])
        assert self.table.get(tenant, name) == self.put_so_far[name]

    @precondition(lambda self: self.put_so_far)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.put_so_far)))
        old = self.put_so_far[name]
        self.put_so_far[name] = old._replace(events=b"event: x\n\n" * 50)
        self.deleted.discard(name)
        assert self.table.put(self.put_so_far[name])

    @precondition(lambda self: self.put_so_far)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def delete(self, data: st.DataObject, tenant: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.put_so_far)))
        there = self.table.get(tenant, name) is not None
        assert self.table.delete(tenant, name) == there
        if there:
            self.deleted.add(name)
            assert self.table.get(tenant, name) is None

    @precondition(lambda self: self.put_so_far)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def read(self, data: st.DataObject, tenant: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.put_so_far)))
        got = self.table.get(tenant, name)
        assert got in (None, self.put_so_far[name])
        if got is not None:
            assert got.tenant == tenant and name not in self.deleted

    @precondition(lambda self: self.put_so_far)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def chain(self, data: st.DataObject, tenant: str) -> None:
        name: str | None = data.draw(st.sampled_from(sorted(self.put_so_far)))
        names: list[str] = []
        missing = None
        start = name
        while name is not None:
            if self.table.get(tenant, name) is None:
                missing = name
                break
            names.append(name)
            name = self.put_so_far[name].previous
        assert start is not None
        if missing is None:
            turns = self.table.chain(tenant, start, 10**9)
            assert [turn.input[0]["id"] for turn in turns] == [f"in of {n}" for n in names[::-1]]
            assert [turn.output[0]["id"] for turn in turns] == [f"out of {n}" for n in names[::-1]]
        else:
            with pytest.raises(BrokenChainError) as caught:
                self.table.chain(tenant, start, 10**9)
            assert caught.value.missing == missing

    @invariant()
    def bounds(self) -> None:
        assert self.table.num_bytes <= self.MAX_BYTES


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=40, deadline=None)


def test_the_key_that_holds_most_loses_its_oldest() -> None:
    table = ResponseTable(None, 10 * (ROW_OVERHEAD + 500))
    table.put(stored("of bob", "bob"))
    for i in range(40):
        table.put(stored(f"{i}", "alice", size=300))
    assert table.get("bob", "of bob") is not None
    assert table.get("alice", "39") is not None and table.get("alice", "0") is None
    table.close()


def test_a_conversation_that_goes_on_is_kept_whole() -> None:
    """Else the first turns of a long one would go, and the rest be of no use."""
    table = ResponseTable(None, 6 * (ROW_OVERHEAD + 200))
    table.put(stored("first"))
    table.put(stored("second", previous="first"))
    for i in range(20):
        assert table.put(stored(f"other {i}"))
        assert len(table.chain("", "second", 10**9)) == 2
    table.close()


def test_what_is_larger_than_the_store_pushes_nothing_out() -> None:
    table = ResponseTable(None, 8000)
    table.put(stored("small"))
    assert not table.put(stored("large", size=2000))
    assert table.get("", "large") is None and table.get("", "small") is not None
    table.close()


def test_long_chains_are_refused_before_they_are_read() -> None:
    table = ResponseTable(None, 10**6)
    table.put(stored("first", size=5000))
    table.put(stored("second", previous="first"))
    with pytest.raises(ChainTooLongError):
        table.chain("", "second", 5000)
    table.put(stored("own tail", previous="own tail"))
    with pytest.raises(ChainTooLongError):
        table.chain("", "own tail", 10**9)
    table.close()


def test_a_file_is_bounded_and_for_one_server(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    table = ResponseTable(path, 100_000)
    for i in range(300):
        table.put(stored(f"{i}", size=2000))
    with pytest.raises(ConfigError, match="locked"):
        ResponseTable(path, 100_000)
    table.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300_000
    table = ResponseTable(path, 20_000)  # started again with less room
    assert 0 < table.num_bytes <= 20_000
    assert table.get("", "299") is not None
    table.close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "foreign.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="not a store"):
        ResponseTable(str(path), 10_000)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="cannot use"):
        ResponseTable(str(tmp_path / "no" / "folder"), 10_000)
