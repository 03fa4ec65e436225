"""What a call's client has got, so that another engine can go on with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from twostroke.core.errors import EngineDeadError
from twostroke.core.output import RequestOutput
from twostroke.core.prefix_hit import KVOffer, PrefixHit
from twostroke.engine.messages import AddRequest, SampleSoFar

MAX_LOST = 3  # engines that may end under a request with no token in between


def without_deaths(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """Leave out those that only say that the engine has ended: requests go on elsewhere."""
    died = EngineDeadError.__name__
    return [each for each in outputs if each.error is None or each.error.kind != died]


class AnswerSoFar:
    """Keeps the tokens of all samples of one call.

    Args:
        message: What the engine got, with the seed that was drawn for it.
        clock: Seconds on the engine's clock.

    Attributes:
        num_engines_lost: Engines that ended since it last got a token.
        offered_in: Where the next engine fetches blocks of the prompt, which this one has computed.
        on_moved: Called once with the seconds from here to the next token, if that comes from the
            engine to which the request is given next.
    """

    def __init__(self, message: AddRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self._message, self._clock = message, clock
        indices = range(message.request.params.n)
        self._tokens: dict[int, list[int]] = {index: [] for index in indices}
        self._num_scored = dict.fromkeys(indices, 0)
        self._first_token_times: dict[int, float] = {}
        self._first: dict[int, tuple[int, PrefixHit | None]] = {}
        self.num_engines_lost = 0
        self.offered_in: str | None = None
        self.on_moved: Callable[[float], None] | None = None
        self._moved_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether every sample that has not ended has got a token: the prompt is through."""
        return all(self._tokens.values())

    @property
    def prompt_time(self) -> tuple[int, float]:
        """How many tokens of the prompt were computed for its first sample, and in how long.

        None, where that has ended without a token.
        """
        if 0 not in self._first_token_times:
            return 0, 0.0
        num_tokens = len(self._message.request.prompt_token_ids) - self._first[0][0]
        return num_tokens, self._first_token_times[0] - self._message.arrival_time

    def move(self, tier: str | None, on_moved: Callable[[float], None]) -> None:
        """Another engine goes on with it, and fetches its blocks from a tier."""
        self.offered_in, self.on_moved, self._moved_at = tier, on_moved, self._clock()

    def stay(self) -> None:
        """None goes on with it: its engine does."""
        self.offered_in = self.on_moved = None

    def lose_engine(self) -> EngineDeadError | None:
        """Its engine has ended: why it is given up, if it is."""
        self.num_engines_lost += 1
        self.on_moved = None  # it waits for other reasons
        if self.num_engines_lost < MAX_LOST:
            return None
        message = f"{MAX_LOST} engines ended while they ran this request"
        return EngineDeadError(message, hint="send another one; see the server's log")

    @property
    def is_suspect(self) -> bool:
        """Whether it may be the reason for which engines end."""
        return self.num_engines_lost >= MAX_LOST - 1

    def note(self, output: RequestOutput) -> None:
        """Keep what an output brings.

        What its first output has told of the prefix cache is put in place of what another engine
        says later.
        """
        tokens = self._tokens.get(output.index)
        if tokens is None:
            return
        first = (output.num_cached_tokens, output.prefix_hit)
        output.num_cached_tokens, output.prefix_hit = self._first.setdefault(output.index, first)
        if output.token_ids:
            if self.on_moved is not None:
                self.on_moved(self._clock() - self._moved_at)
                self.on_moved = None
            self._first_token_times.setdefault(output.index, self._clock())
        if output.finish_reason is not None:
            del self._tokens[output.index]
            return
        if output.token_ids or output.prompt_logprobs:
            self.num_engines_lost = 0
        tokens += output.token_ids
        self._num_scored[output.index] += len(output.prompt_logprobs or ())

    def resume(self) -> AddRequest:
        """The call for another engine: the samples that have not ended, from where they were."""
        samples = [
            SampleSoFar(
                index, list(tokens), self._num_scored[index], self._first_token_times.get(index)
            )
            for index, tokens in self._tokens.items()
        ]
        offer = None
        if self.offered_in is not None:
            offer = KVOffer(self.offered_in, len(self._message.request.prompt_token_ids))
        return msgspec.structs.replace(self._message, resumed=samples, offer=offer)
