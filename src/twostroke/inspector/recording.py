"""A recorded file as a source of steps: found by line, decoded only where it is shown.

Opening finds the lines (a second for some hundred MB). A thread then reads all of it once, for the
table of requests, an overview and the KV blocks; meanwhile any part can be looked at.
"""

from __future__ import annotations

import asyncio
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.inspector.block_replay import BlockReplay, Saved
from twostroke.inspector.content import TokenPage
from twostroke.inspector.fleet.occupancy import Occupancy
from twostroke.inspector.line_file import LineFile
from twostroke.inspector.request_table import RequestTable
from twostroke.inspector.source import (
    Description,
    FoundRequests,
    FrameLimits,
    Kind,
    Overview,
    State,
)
from twostroke.inspector.why.waits import WaitBook
from twostroke.observability.events import ScheduledTokens, StepEvent
from twostroke.observability.frames.columns import (
    StepFrame,
    encode_steps,
    join_frames,
    those_that_fit,
)
from twostroke.observability.frames.merged_rows import merge_rows
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.recorder import CALL_START
from twostroke.observability.snapshot import BlockState
from twostroke.observability.tracing.stations import CallLine, CallStations

_HEAD = re.compile(rb'\{"step":(\d{1,18}),"time":(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?),')
HINT = "give a file that was written with --record"
_EVENTS = msgspec.json.Decoder(StepEvent)  # made once: several threads read
_CALL_LINES = msgspec.json.Decoder(CallLine)
MAX_DECODED = 8192  # steps that are decoded for one answer; more are answered from the overview
OVERVIEW_ROWS = 4096
FEW_ROWS = 64  # of the overview: a part of time with fewer is read from its own steps
NO_LIMIT = 2**62
LOOK_BACK = 256  # steps in which every running request has had a share
# Moments from which blocks are replayed, and steps between two of them at least. A moment of a
# cache of 30,000 blocks takes about 0.2 MB; to replay a step of 100 requests takes about 0.3 ms.
MAX_SAVED, MIN_BETWEEN = 128, 128
MAX_CALLS = 2**18  # requests whose stations are found


class Recording:
    """Implements ``RequestSource`` over a file that ``--record`` wrote.

    A file that several engines appended to shows the last one's steps.

    Args:
        name: What the page calls it.
        configuration: The engine's, as far as the caller knows it.

    Raises:
        ConfigError: The file cannot be read or holds no step events.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind = "recording",
        name: str | None = None,
        configuration: Mapping[str, object] | None = None,
    ) -> None:
        self._configuration = dict(configuration or {})
        self._kind = kind
        self._name = name or path.name
        self._path = path
        self._steps: array[int] = array("q")
        self._times: array[float] = array("d")
        self._begins: array[int] = array("q")
        self._ends: array[int] = array("q")
        self._call_lines: array[int] = array("q")  # where each begins, then where it ends
        self._decoder = _EVENTS
        self._file = LineFile(path)
        try:
            self._find_lines()
            self._last = self._event(len(self._steps) - 1)
            self._block_size = self._find_block_size()
        except BaseException:
            self._file.close()
            raise
        self._table = RequestTable()
        self.occupancy = Occupancy()
        self._waits = WaitBook()
        self._overview: list[StepFrame] = []
        self._num_read = 0
        self._calls: dict[str, int] = {}  # places in ``_call_lines``
        self._replay = BlockReplay(Saved(self._last.total_blocks, self._block_size))
        self._saved: list[bytes] = []  # states of ``_replay``, at equal distances
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read_all, name="inspect-read", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Stop reading and forget the file."""
        self._closed.set()
        self._reader.join(timeout=10)
        self._file.close()

    def wait_until_read(self, seconds: float) -> bool:
        """Wait until the table of requests is complete; whether it is."""
        self._reader.join(timeout=seconds)
        return not self._reader.is_alive()

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def end_of(self, request_id: str) -> int | None:
        """The step that ended a request, as far as the file is read."""
        return self._table.end_of(request_id)

    def step_of_row(self, row: int) -> int:
        """The number of the step in that place of the file."""
        return self._steps[row]

    @property
    def last_step(self) -> int:
        return self._steps[-1]

    def describe(self) -> Description:
        last = self._last
        return Description(
            kind=self._kind,
            engine_id=f"{self._path.name}-{self._file.size}",
            name=self._name,
            first_step=self._steps[0],
            last_step=self._steps[-1],
            first_time=self._times[0],
            last_time=last.time + last.duration,
            now=last.time + last.duration,
            ready=self._num_read / len(self._steps),
            num_blocks=last.total_blocks,
            block_size=self._block_size,
            configuration={"max_num_batched_tokens": last.token_budget, **self._configuration},
        )

    async def frame(
        self, begin: int, end: int, visible: Visibility | None, limits: FrameLimits
    ) -> StepFrame:
        first, last = bisect_left(self._steps, begin), bisect_left(self._steps, end)
        max_steps, max_shares, fit = limits

        def make() -> StepFrame:
            if fit != "merge":
                order = range(first, last) if fit == "first" else range(last - 1, first - 1, -1)
                events = those_that_fit(map(self._event, order), max_steps, max_shares)
                return encode_steps(events if fit == "first" else events[::-1], visible)
            if visible is not None:
                mine = filter(visible.concerns, map(self._event, range(first, last)))
                return encode_steps(list(mine), visible, max_steps=max_steps, max_shares=max_shares)
            stride = -(-(last - first) // MAX_DECODED)
            if stride > 1 and self._num_read == len(self._steps):
                return self._from_overview(first, last)
            # Until all is read, a wide view shows one step in ``stride``.
            events = [self._event(row) for row in range(first, last, max(1, stride))]
            return encode_steps(events, visible, max_steps=max_steps, max_shares=max_shares)

        return await asyncio.to_thread(make)

    def step_at(self, time: float) -> int:
        return self._steps[max(0, bisect_right(self._times, time) - 1)]

    async def state(self, step: int | None, *, with_blocks: bool = False) -> State:
        row = len(self._steps) - 1 if step is None else bisect_right(self._steps, step) - 1
        state = await asyncio.to_thread(self._state_after, max(0, row))
        if with_blocks:
            state.blocks = await asyncio.to_thread(self._blocks_after, max(0, row))
        return state

    async def overview(self, begin: float, end: float, max_steps: int) -> Overview:
        first = max(0, bisect_right(self._times, begin) - 1)
        last = bisect_right(self._times, end)

        def make() -> Overview:
            size = -(-len(self._steps) // OVERVIEW_ROWS)
            if last - first > FEW_ROWS * size and self._num_read == len(self._steps):
                frames = self._overview[first // size : -(-last // size)]
                rows = merge_rows([frame.steps for frame in frames], max_steps)
            else:  # until all is read, one step in ``stride``
                stride = max(1, (last - first) // (FEW_ROWS * size))
                events = [self._event(row) for row in range(first, last, stride)]
                rows = encode_steps(events, max_steps=max_steps, max_shares=NO_LIMIT).steps
            return Overview(rows, self._table.within(begin, end))

        return await asyncio.to_thread(make)

    async def find(self, text: str, tenant: str | None, count: int) -> FoundRequests:
        return await asyncio.to_thread(self._table.find, text, tenant, count, self._steps[-1])

    async def requests_of(self, tenant: str) -> set[str]:
        return self._table.ids_of(tenant)

    async def call(self, request_id: str) -> CallStations | None:
        place = self._calls.get(request_id.split("#", 1)[0])
        if place is None:
            return None
        begin, end = self._call_lines[place], self._call_lines[place + 1]
        line = await asyncio.to_thread(self._file.read, begin, end)
        return _CALL_LINES.decode(line).call

    async def waits(self) -> WaitBook:
        return self._waits

    def tenant_of_content(self, request_id: str) -> None:
        """Recordings hold no text."""

    def tokens(self, request_id: str, begin: int, count: int) -> TokenPage | None:
        return None

    def is_ending(self) -> bool:
        return self._closed.is_set()

    @property
    def _between(self) -> int:
        """Steps between two saved moments of the blocks."""
        return max(MIN_BETWEEN, -(-len(self._steps) // MAX_SAVED))

    def _blocks_after(self, row: int) -> BlockState | None:
        """Replayed from the last saved moment; ``None`` until that has been read."""
        place = row // self._between
        if row >= self._num_read or place >= len(self._saved):
            return None
        replay = BlockReplay.restore(self._saved[place])
        for number in range(place * self._between, row + 1):
            replay.add(self._event(number))
        return replay.state()

    def _state_after(self, row: int) -> State:
        event = self._event(row)
        end = event.time + event.duration
        shares: dict[str, ScheduledTokens] = {}
        for back in range(row, max(-1, row - LOOK_BACK), -1):
            for share in self._event(back).scheduled:
                shares.setdefault(share.request_id, share)
            if len(shares) >= event.num_running + len(event.finished):
                break
        running, waiting, ended = self._table.at(event.step, shares, end)
        return State(end, running, waiting, ended)

    def _event(self, row: int) -> StepEvent:
        line = self._file.read(self._begins[row], self._ends[row])
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"{self._path}: step {self._steps[row]} cannot be read: {error}"
            raise ConfigError(message, hint=HINT) from error

    def _find_block_size(self) -> int:
        """Tokens per block, from a step after which some were held; 0 if there is none."""
        for row in range(min(len(self._steps), LOOK_BACK)):
            event = self._event(row)
            if held := event.total_blocks - event.free_blocks:
                return event.allocated_slots // held
        return 0

    def _find_lines(self) -> None:
        """Where each step's line begins; unfinished lines (the writer was killed) are left out."""
        for place, data, begin, end in self._file.lines():
            match = _HEAD.match(data, begin, end)
            if match is not None and data[end - 1 : end] == b"}":
                step = int(match[1])
                if self._steps and step <= self._steps[-1]:  # another engine's, from here on
                    self._steps, self._times = array("q"), array("d")
                    self._begins, self._ends = array("q"), array("q")
                    self._call_lines = array("q")
                self._steps.append(step)
                self._times.append(float(match[2]))
                self._begins.append(place)
                self._ends.append(place + end - begin)
            elif data.startswith(CALL_START, begin, end):
                if data[end - 1 : end] == b"}" and len(self._call_lines) < 2 * MAX_CALLS:
                    self._call_lines.extend((place, place + end - begin))
            elif not data.startswith(b'{"step":', begin, end):
                number = self._file.read(0, place).count(b"\n") + 1
                raise ConfigError(f"{self._path}, line {number}: no step event", hint=HINT)
        if not self._file.size:
            raise ConfigError(f"{self._path} is empty", hint=HINT)
        if not self._steps:
            raise ConfigError(f"{self._path} holds no step event", hint=HINT)

    def _read_all(self) -> None:
        """The table of requests, the overview and the blocks, for the whole file."""
        self._read_calls()
        size = -(-len(self._steps) // OVERVIEW_ROWS)
        block: list[StepEvent] = []
        for row in range(len(self._steps)):
            if self._closed.is_set():
                return
            if row % self._between == 0:
                self._saved.append(self._replay.save())
            try:
                event = self._event(row)
            except ConfigError:
                pass  # reported where its step is shown
            else:
                self._table.add(event)
                self.occupancy.add(event)
                self._waits.add(event)
                self._replay.add(event)
                block.append(event)
            if (row + 1) % size == 0:  # by place in the file: what is looked up by it must be there
                self._overview.append(encode_steps(block, max_steps=1))
                block = []
                self._num_read = row
        if len(self._steps) % size:
            self._overview.append(encode_steps(block, max_steps=1))
        self._num_read = len(self._steps)

    def _read_calls(self) -> None:
        """Which request's stations are where. A line that cannot be read is passed over."""
        for place in range(0, len(self._call_lines), 2):
            begin, end = self._call_lines[place], self._call_lines[place + 1]
            try:
                line = _CALL_LINES.decode(self._file.read(begin, end))
            except (ConfigError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            for request_id in line.call.request_ids:
                if len(self._calls) < MAX_CALLS:
                    self._calls[request_id] = place

    def _from_overview(self, first: int, last: int) -> StepFrame:
        size = -(-len(self._steps) // OVERVIEW_ROWS)
        return join_frames(self._overview[first // size : -(-last // size)], size)
