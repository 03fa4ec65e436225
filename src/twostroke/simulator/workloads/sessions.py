"""Conversations: each turn's prompt holds the turns before it, so that a prefix cache can hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from twostroke.simulator.workloads.arrivals import draw_pause
from twostroke.simulator.workloads.base import RequestSpec

# Identity of the prefix that all sessions share; those of the sessions count from 0.
SYSTEM_PROMPT = -1


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """Tokens of a question, and of the answer to it."""

    question: int
    answer: int


@dataclass
class Sessions:
    """Sessions start at given times; the next question follows the answer after a pause.

    Args:
        sessions: The turns of each.
        starts: Seconds, ascending, one for each session.
        prefix_len: Tokens of the system prompt that all share.
        think_time: Seconds of a pause on average, exponentially distributed.
        priorities: One for each session; all 0 if empty. ``tenants`` likewise.
    """

    sessions: Sequence[Sequence[SessionTurn]]
    starts: Sequence[float]
    prefix_len: int = 0
    think_time: float = 0.0
    seed: int = 0
    priorities: Sequence[int] = ()
    tenants: Sequence[int] = ()
    _first_numbers: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._first_numbers = [0]
        for turns in self.sessions:
            self._first_numbers.append(self._first_numbers[-1] + len(turns))

    @property
    def total(self) -> int:
        return self._first_numbers[-1]

    @property
    def reactive(self) -> bool:
        return True

    def arrivals(self) -> Iterator[RequestSpec]:
        return (self._spec(session, 0, start) for session, start in enumerate(self.starts))

    def after(self, spec: RequestSpec, now: float) -> Sequence[RequestSpec]:
        assert spec.session is not None
        turn = spec.number - self._first_numbers[spec.session] + 1
        if turn == len(self.sessions[spec.session]):
            return ()
        # Seeded by the request, so that the order in which requests end changes nothing.
        pause = draw_pause(Random(f"{self.seed} {spec.number} thinking"), self.think_time)
        return (self._spec(spec.session, turn, now + pause),)

    def _spec(self, session: int, number: int, arrival: float) -> RequestSpec:
        turns = self.sessions[session]
        previous = sum(turn.question + turn.answer for turn in turns[:number])
        total = previous + turns[number].question + turns[number].answer
        system = ((SYSTEM_PROMPT, self.prefix_len),) if self.prefix_len else ()
        return RequestSpec(
            number=self._first_numbers[session] + number,
            arrival=arrival,
            prompt_tokens=self.prefix_len + previous + turns[number].question,
            output_tokens=turns[number].answer,
            segments=(*system, (session, total)),
            priority=self.priorities[session] if self.priorities else 0,
            session=session,
            tenant=self.tenants[session] if self.tenants else 0,
        )
