"""The seam between the routes and where steps come from: a live engine, a recording."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import msgspec

from twostroke.inspector.content import TokenPage
from twostroke.inspector.why.waits import WaitBook
from twostroke.observability.frames.columns import StepColumns, StepFrame
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import BlockState, RequestSnapshot
from twostroke.observability.tracing.stations import CallStations

Fit = Literal["merge", "first", "last"]
Kind = Literal["live", "recording", "simulation"]


class Description(msgspec.Struct):
    """What stays the same while a source is open; ``time`` and ``step`` are its bounds now.

    Attributes:
        engine_id: Another one means other steps: step numbers do not go on.
        clock_origin: Wall-clock time (Unix, seconds) at which the engine's clock showed 0; 0 where
            nobody knows, as in a recording.
        first_step: The oldest that ``steps`` still has.
        ready: Share of a recording that is indexed, up to 1.
        all_tenants: Whether the caller sees what is not its own.
        content: Whether prompts and answers are kept, to be shown.
    """

    kind: Kind
    engine_id: str
    name: str
    clock_origin: float = 0.0
    first_step: int = 0
    last_step: int = -1
    first_time: float = 0.0
    last_time: float = 0.0
    now: float = 0.0
    ready: float = 1.0
    all_tenants: bool = True
    content: bool = False
    num_blocks: int = 0
    block_size: int = 0
    configuration: dict[str, object] = {}
    schema: int = 1


class State(msgspec.Struct):
    """Requests and blocks at one moment: of a live engine now, of a recording after ``step``.

    Attributes:
        time: On the engine's clock.
        running: In the order in which they were admitted.
        waiting: In order of arrival; of a recording those that will be admitted later on. Of a
            long queue the first ones; ``waiting_left_out`` more wait.
        ended: The latest ones, oldest first.
    """

    time: float
    running: list[RequestSnapshot]
    waiting: list[RequestSnapshot]
    ended: list[RequestSnapshot]
    blocks: BlockState | None = None
    waiting_left_out: int = 0


class OverviewRequest(msgspec.Struct):
    """What became of a request; times on the engine's clock, ``None`` where it has not happened."""

    request_id: str
    arrival: float
    started: float | None
    first_token: float | None
    finish: float | None
    reason: str | None
    prompt: int
    output: int


class Overview(msgspec.Struct):
    """A long part of time: merged steps, and the requests that were there, in order of arrival."""

    steps: StepColumns
    requests: list[OverviewRequest]
    left_out: int = 0


class FoundRequest(msgspec.Struct):
    """A request that a search was for; ``step``: its end, or the latest one of all."""

    request_id: str
    step: int
    tenant: str
    labels: dict[str, str]


class FoundRequests(msgspec.Struct):
    """The first ones in order of arrival, and how many more there are."""

    requests: list[FoundRequest]
    left_out: int = 0


class FrameLimits(NamedTuple):
    """How much one frame may hold, and what is given where there is more.

    Attributes:
        max_steps: Most rows of steps.
        max_shares: Most shares of requests in these steps.
        fit: Whether steps are merged, or which of them are left out.
    """

    max_steps: int
    max_shares: int
    fit: Fit = "merge"


class StepSource(Protocol):
    """Steps by number and state by step. Called on the event loop's thread; slow work goes aside.

    What a method returns is the caller's.
    """

    def describe(self) -> Description: ...

    async def frame(
        self, begin: int, end: int, visible: Visibility | None, limits: FrameLimits
    ) -> StepFrame:
        """Steps with ``begin <= step < end``, as far as they are still there.

        Where they are more than the limits allow, they are merged, or only the first or last that
        fit are given, at least one.
        """
        ...

    def step_at(self, time: float) -> int:
        """The last step that began at or before ``time``; the first one if there is none."""
        ...

    async def state(self, step: int | None, *, with_blocks: bool = False) -> State:
        """After ``step``; ``None`` is now, or the end."""
        ...

    async def overview(self, begin: float, end: float, max_steps: int) -> Overview:
        """What happened between two times, in at most ``max_steps`` rows."""
        ...

    async def find(self, text: str, tenant: str | None, count: int) -> FoundRequests:
        """Requests with ``text`` in id, tenant or a label; of ``tenant``, or ``None`` for all."""
        ...

    async def requests_of(self, tenant: str) -> set[str]:
        """Ids of the known requests of one tenant."""
        ...

    def is_ending(self) -> bool:
        """Whether streams should end, since the server does."""
        ...


class RequestSource(StepSource, Protocol):
    """A source that knows of requests what no step tells."""

    async def call(self, request_id: str) -> CallStations | None:
        """The stations of a request over HTTP, if it came that way and they are still known."""
        ...

    def tenant_of_content(self, request_id: str) -> str | None:
        """Whose request it is; ``None`` if its tokens are not kept."""
        ...

    async def waits(self) -> WaitBook:
        """What requests waited for, as far as is known now. Read only."""
        ...

    def tokens(self, request_id: str, begin: int, count: int) -> TokenPage | None:
        """Its tokens from position ``begin`` on, if they are kept; safe on any thread."""
        ...
