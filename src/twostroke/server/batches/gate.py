"""When the next line of a batch may go to the engine: where it leaves room for all other calls.

At most half of the places are for lines, and a quarter is left free. None enters while a request
waits, and their prompts together bring no more than a part of one step at a time: what arrives
meanwhile finds a place, and the engine hardly busier than without batches.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from twostroke.core.config import SchedulerConfig
from twostroke.engine.clients.base import OutputStream
from twostroke.observability.events import SchedulerStats
from twostroke.server.state.server_state import ServerState

# How often it is asked whether there is room, in seconds; a line that ends is noticed at once.
POLL_SECONDS = 0.005
# Of a step's tokens, the part that prompts of lines may take before more of them enter.
SHARE_OF_STEP = 8


class AnsweredLine:
    """A line that is being answered. Implements ``Background``.

    Args:
        let_next_in: Called once: as soon as the line's prompt is known, or at its end.
    """

    def __init__(self, tenant: str, let_next_in: Callable[[], None]) -> None:
        self.tenant = tenant
        self._let_next_in: Callable[[], None] | None = let_next_in
        self._prompts: list[tuple[OutputStream, int]] = []

    def submitted(self, stream: OutputStream, num_prompt_tokens: int) -> None:
        self._prompts.append((stream, num_prompt_tokens))
        stream.when_ended(lambda _: self._prompts.clear())
        self.pass_on()

    def pass_on(self) -> None:
        """Let the next line in, if that has not been done."""
        let_next_in, self._let_next_in = self._let_next_in, None
        if let_next_in is not None:
            let_next_in()

    def num_pending_tokens(self) -> int:
        """Tokens of the line's prompts that have no first token yet."""
        self._prompts = [(s, num) for s, num in self._prompts if not s.usage.output_tokens]
        return sum(num for _, num in self._prompts)


class Gate:
    """Lets lines in one after the other, those of each tenant in turn.

    Args:
        max_bytes: What lines may take that wait or are being answered, all together.
    """

    def __init__(self, state: ServerState, max_bytes: int) -> None:
        self._state = state
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_held: Counter[str] = Counter()
        self._inside: list[AnsweredLine] = []
        # One line of each tenant waits for the turn, which goes to the one that waits longest.
        self._firsts: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    async def hold(self, tenant: str, num_bytes: int) -> None:
        """Wait until a line of this many bytes may be held in memory; one alone always may."""
        while not self._may_hold(tenant, num_bytes):
            await self._wait()
        self._num_bytes += num_bytes
        self._num_held[tenant] += 1

    def let_go(self, tenant: str, num_bytes: int) -> None:
        """A line is held no longer."""
        self._num_bytes -= num_bytes
        self._num_held[tenant] -= 1
        self._left.set()

    @asynccontextmanager
    async def enter(self, tenant: str) -> AsyncIterator[AnsweredLine]:
        """Wait until there is room for a line, which is answered within."""
        async with self._firsts[tenant]:
            await self._turn.acquire()
        line = AnsweredLine(tenant, self._turn.release)
        try:
            while not self._has_room():
                await self._wait()
            self._inside.append(line)
            yield line
        finally:
            line.pass_on()
            if line in self._inside:
                self._inside.remove(line)
            self._left.set()

    def _may_hold(self, tenant: str, num_bytes: int) -> bool:
        if self._state.status()[0] != "ok":
            return False
        places = num_places(self._state.model().client.scheduler_config)
        if self._num_held[tenant] >= places:
            return False
        return not self._num_bytes or self._num_bytes + num_bytes <= self._max_bytes

    async def _wait(self) -> None:
        self._left.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._left.wait()

    def _has_room(self) -> bool:
        if self._state.status()[0] != "ok":
            return False
        client = self._state.model().client
        pending = sum(line.num_pending_tokens() for line in self._inside)
        return has_room(client.scheduler_config, client.status.stats, len(self._inside), pending)


def num_places(config: SchedulerConfig) -> int:
    """How many lines may be answered at once."""
    return max(1, config.max_num_seqs // 2)


def has_room(
    config: SchedulerConfig, stats: SchedulerStats, num_inside: int, num_pending_tokens: int
) -> bool:
    """Whether another line may enter.

    Args:
        num_inside: Lines that are being answered.
        num_pending_tokens: Tokens of their prompts that may still be computed.
    """
    places = config.max_num_seqs
    return (
        num_inside < num_places(config)
        and not stats.num_waiting
        and stats.num_running < max(1, places - places // 4)
        and num_pending_tokens <= config.max_num_batched_tokens // SHARE_OF_STEP
    )
