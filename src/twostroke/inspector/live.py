"""A live engine as a source of steps: those that it has told its client of.

Every client keeps them, page or no page; nothing of this runs while no page is open.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from twostroke.core.speculation_config import Speculation
from twostroke.engine.clients.base import EngineClient
from twostroke.inspector.content import ContentBook, TokenPage, token_page
from twostroke.inspector.request_table import RequestTable
from twostroke.inspector.source import (
    Description,
    FoundRequests,
    FrameLimits,
    Overview,
    State,
)
from twostroke.inspector.why.waits import WaitBook
from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import StepFrame, encode_steps, those_that_fit
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.tracing.call_book import CallBook
from twostroke.observability.tracing.stations import CallStations
from twostroke.text.tokenizer import Tokenizer

NO_LIMIT = 2**62
KEPT_WAITS = 4096  # requests that ended, and what they waited for
FEW_STEPS = 32  # that the event loop encodes itself: in about a millisecond


def _shown(speculation: Speculation | None) -> dict[str, object] | None:
    """What the page says of how tokens are guessed."""
    if speculation is None:
        return None
    names = ("method", "num_speculative_tokens", "adaptive")
    return {name: getattr(speculation, name) for name in names}


class LiveSource:
    """Implements ``RequestSource`` over an engine in this process.

    Args:
        client: The engine, as soon as it is loaded; raises until then.
        name: The model's name, as clients call it.
        is_ending: Whether the server is shutting down.
        calls: Knows their stations over HTTP.
        content: Keeps prompts and answers, where they are to be shown.
        tokenizer: Makes text of them.
    """

    def __init__(
        self,
        client: Callable[[], EngineClient],
        name: Callable[[], str],
        is_ending: Callable[[], bool],
        calls: CallBook | None = None,
        content: ContentBook | None = None,
        tokenizer: Callable[[], Tokenizer] | None = None,
    ) -> None:
        self._calls = calls
        self._content, self._tokenizer = content, tokenizer
        self._client = client
        self._name = name
        self._is_ending = is_ending
        self._engine_id = uuid.uuid4().hex[:12]
        self._waits = WaitBook(KEPT_WAITS)
        self._reading = asyncio.Lock()
        self._asked: dict[bool, asyncio.Task[EngineSnapshot]] = {}  # by whether with blocks

    def describe(self) -> Description:
        client = self._client()
        info, scheduler = client.info, client.scheduler_config
        events, now = client.events(), time.monotonic()
        description = Description(
            kind="live",
            engine_id=self._engine_id,
            name=self._name(),
            clock_origin=time.time() - now,
            now=now,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            content=self._content is not None,
            configuration={
                "device": info.device,
                "max_model_len": info.max_model_len,
                "max_num_seqs": scheduler.max_num_seqs,
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_prefill_chunk": scheduler.max_prefill_chunk,
                "policy": scheduler.policy,
                "kv_bytes_per_token": info.kv_bytes_per_token,
                "weight_bytes": info.weight_bytes,
                "vocab_size": info.vocab_size,
                "speculation": _shown(client.speculation),
            },
        )
        if events:
            description.first_step, description.last_step = events[0].step, events[-1].step
            description.first_time = events[0].time
            description.last_time = events[-1].time + events[-1].duration
        return description

    async def frame(
        self, begin: int, end: int, visible: Visibility | None, limits: FrameLimits
    ) -> StepFrame:
        events, (max_steps, max_shares, fit) = self.events(begin), limits

        def make() -> StepFrame:
            kept = events[: bisect_left(events, end, key=lambda event: event.step)]
            if fit == "first":
                kept = those_that_fit(kept, max_steps, max_shares)
            elif fit == "last":
                kept = those_that_fit(reversed(kept), max_steps, max_shares)[::-1]
            return encode_steps(kept, visible, max_steps=max_steps, max_shares=max_shares)

        # A page that follows asks for a few steps; the whole ring takes a second with 64 requests.
        return make() if len(events) <= FEW_STEPS else await asyncio.to_thread(make)

    def events(self, begin: int) -> list[StepEvent]:
        return self._client().events(begin - 1)

    def step_at(self, time: float) -> int:
        events = self._client().events()
        if not events:
            return 0
        return events[max(0, bisect_right(events, time, key=lambda event: event.time) - 1)].step

    async def state(self, step: int | None, *, with_blocks: bool = False) -> State:
        snapshot = await self._snapshot(with_blocks)
        return State(
            snapshot.time,
            snapshot.running,
            snapshot.waiting,
            snapshot.ended,
            snapshot.blocks,
            snapshot.waiting_left_out,
        )

    async def overview(self, begin: float, end: float, max_steps: int) -> Overview:
        events = self._client().events()
        first = max(0, bisect_right(events, begin, key=lambda event: event.time) - 1)
        last = bisect_right(events, end, key=lambda event: event.time)

        def make() -> Overview:
            table = RequestTable()
            for event in events:
                table.add(event)
            frame = encode_steps(events[first:last], max_steps=max_steps, max_shares=NO_LIMIT)
            return Overview(frame.steps, table.within(begin, end))

        return await asyncio.to_thread(make)

    async def find(self, text: str, tenant: str | None, count: int) -> FoundRequests:
        events = self._client().events()

        def search() -> FoundRequests:
            table = RequestTable()
            for event in events:
                table.add(event)
            return table.find(text, tenant, count, events[-1].step if events else -1)

        return await asyncio.to_thread(search)

    async def _snapshot(self, with_blocks: bool) -> EngineSnapshot:
        """One for all who ask before it comes: it costs the engine time between two steps."""
        task = self._asked.get(with_blocks)
        if task is None or task.done():
            task = asyncio.ensure_future(self._client().snapshot(with_blocks=with_blocks))
            # Read once, also where everybody has left: asyncio would complain of it.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._asked[with_blocks] = task
        return await asyncio.shield(task)

    async def requests_of(self, tenant: str) -> set[str]:
        state = await self.state(None)
        own = {
            request.request_id
            for request in (*state.ended, *state.waiting, *state.running)
            if request.tenant == tenant
        }
        for event in self._client().events():
            own.update(s.request_id for s in event.started if s.tenant == tenant)
        return own

    async def call(self, request_id: str) -> CallStations | None:
        return None if self._calls is None else self._calls.find(request_id)

    async def waits(self) -> WaitBook:
        """What the book has not read yet is read now: no page, no cost."""
        async with self._reading:
            events = self._client().events(self._waits.last_step)

            def read() -> None:
                for event in events:
                    self._waits.add(event)

            if len(events) <= FEW_STEPS:
                read()
            else:
                await asyncio.to_thread(read)
        return self._waits

    def tenant_of_content(self, request_id: str) -> str | None:
        content = None if self._content is None else self._content.find(request_id)
        return None if content is None else content.tenant

    def tokens(self, request_id: str, begin: int, count: int) -> TokenPage | None:
        content = None if self._content is None else self._content.find(request_id)
        if content is None or self._tokenizer is None:
            return None
        return token_page(content, self._tokenizer(), begin, count)

    def is_ending(self) -> bool:
        return self._is_ending()
