"""Lines of stored files: cut wherever pieces end, and checked without holding any up."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machine_speed import slowness
from tests.server.batches.batch_calls import line
from twostroke.batch.lines import GoodLine, parse_line
from twostroke.server.batches.message_objects import MessagesOutput
from twostroke.server.batches.openai_objects import OpenAIOutput
from twostroke.server.batches.record import BatchRecord, Times
from twostroke.server.batches.stored_lines import (
    MAX_LINES,
    LineChecks,
    LineSplitter,
    check_stored,
    stored_lines,
)
from twostroke.server.files.store import FileStore, FileWriter
from twostroke.server.files.table import PART_OVERHEAD


def record(input_file: str = "file-1") -> BatchRecord:
    return BatchRecord(
        id="batch_1",
        tenant="",
        api="openai",
        url="/v1/chat/completions",
        input_file=input_file,
        output_file="file-2",
        error_file="file-3",
        created=0,
        expires=0,
        times=Times(),
    )


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_the_lines_are_those_of_the_whole_text(pieces: list[bytes]) -> None:
    splitter = LineSplitter(8)
    found = [raw for piece in pieces for raw in splitter.feed(piece)] + [*splitter.end()]
    expected: list[tuple[int, bytes | None]] = []
    for number, text in enumerate(b"".join(pieces).split(b"\n"), 1):
        stripped = (text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text).strip()
        if len(text) > 8:
            expected.append((number, None))
        elif stripped:
            expected.append((number, stripped))
    assert found == expected


def test_what_can_be_said_of_each_line_is_counted() -> None:
    """Room is kept for it: a batch must be able to say what became of all its requests."""
    for name in ("a", "é\n" * 200, "\U0001f600" * 500):
        checked = record()
        checks = LineChecks(checked, 2**20)
        checks.check(LineSplitter(2**20).feed(line(name)))
        assert checks.total == 1 and not checked.mistakes
        call = parse_line(line(name).strip(), 10**6)
        assert isinstance(call, GoodLine)
        for outcome in ("failed", "cancelled", "expired"):
            checked.outcome = outcome
            for form in (OpenAIOutput(), MessagesOutput()):
                written = form.unanswered(call, checked)
                assert len(written) + 1 + PART_OVERHEAD <= checks.unanswered_bytes


async def stored(text: bytes) -> tuple[FileStore, str]:
    store = FileStore(None, 2**28)
    writer = await FileWriter.begin(store, "")
    for start in range(0, len(text), 2**16):
        await writer.write(text[start : start + 2**16])
    file = await writer.end("a", "batch", 2**40)
    return store, file.id


async def test_a_file_is_read_as_it_was_written() -> None:
    text = b"".join(line(f"c{i}") for i in range(3000))
    store, file_id = await stored(text)
    found = [raw async for raw in stored_lines(store, file_id, 2**16)]
    assert b"".join(raw.text + b"\n" for raw in found if raw.text) == text
    await store.close()


class Ticks:
    """Measures the longest time that the event loop takes for a turn."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._tick())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.monotonic() - began)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"\n" * 2**23, "too_many_lines"),
        (b"".join(line(f"c{i}") for i in range(20_000)), None),
        (b"{}\n" * (MAX_LINES + 10), "invalid_line"),
    ],
    ids=["blank", "good", "bad"],
)
async def test_checking_leaves_the_event_loop_its_turns(text: bytes, code: str | None) -> None:
    """Also of a file of line feeds alone, of which there are more than of anything else."""
    store, file_id = await stored(text)
    checked, ticks = record(file_id), Ticks()
    await check_stored(store, checked, 2**20, asyncio.Lock())
    await ticks.end()
    codes = [mistake.code for mistake in checked.mistakes]
    assert codes[:1] == ([] if code is None else [code])
    assert ticks.longest < 0.25 * slowness()
    await store.close()


async def test_a_batch_has_so_many_requests() -> None:
    checked = record()
    checks = LineChecks(checked, 2**20)
    splitter = LineSplitter(2**20)
    for start in range(0, MAX_LINES + 100, 1000):
        checks.check(splitter.feed(b"".join(line(f"c{start + i}") for i in range(1000))))
        if checks.failed:
            break
    (mistake,) = checked.mistakes
    assert (mistake.code, mistake.line) == ("too_many_lines", MAX_LINES + 1)
