"""Plays a workload on the live engine in real time, as the simulator plays it in virtual time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from random import Random

from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.simulator.fleet.result import RequestResult
from twostroke.simulator.workloads.base import RequestSpec, Workload

# Seconds between two looks at the machine's speed, and how many a pause must have left for one,
# which takes some 0.002.
LOOK_EVERY, ROOM_TO_LOOK = 0.5, 0.02


class LivePlayer:
    """Sends a workload's requests to an engine when they are due, and notes each result.

    Args:
        engine: Used by this player alone.
        seed: Of the tokens. Another one for each run: what an earlier one left in the prefix cache
            must not be found.
        look: Called every ``LOOK_EVERY`` seconds, in a pause; if there is none between two steps,
            half as often. The player's clock stands still meanwhile: no request pays for it. What
            it gives is in ``seen``.
        wait: Lets so many seconds pass while there is no request.
        clock: Seconds, by which requests are due and timed.
    """

    def __init__(
        self,
        engine: LLMEngine,
        workload: Workload,
        seed: str,
        look: Callable[[], float] | None = None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seen: list[float] = []
        self._look = look
        self._wait = wait
        self._clock = clock
        self._next_look = 0.0
        self._began = 0.0
        self._engine = engine
        self._workload = workload
        self._random = Random(f"{seed} tokens")
        self._vocabulary = range(engine.info.vocab_size)
        self._due: list[tuple[float, int, RequestSpec]] = [
            (spec.arrival, spec.number, spec) for spec in workload.arrivals()
        ]
        heapq.heapify(self._due)
        self._sent: dict[str, tuple[RequestSpec, list[int]]] = {}
        self._first: dict[str, float] = {}
        self._sessions: dict[int, list[int]] = {}
        self._shared: dict[int, list[int]] = {}
        self._results: list[RequestResult] = []

    def run(self) -> list[RequestResult]:
        """All requests, by number. Raises EngineError if one fails."""
        engine, self._began = self._engine, self._clock()
        while self._due or engine.has_work():
            now = self._now()
            while self._due and self._due[0][0] <= now:
                self._send(heapq.heappop(self._due)[2])
            if not engine.has_work():
                self._pause(self._due[0][0])
                continue
            outputs = engine.step()
            now = self._now()
            for output in outputs:
                raise_output_error(output)
                self._first.setdefault(output.request_id, now)
                self._sent[output.request_id][1].extend(output.token_ids)
                if output.finished:
                    self._end(output.request_id, output.num_cached_tokens, now)
            if now >= self._next_look + LOOK_EVERY:
                self._look_now()
        return sorted(self._results, key=lambda result: result.number)

    def _now(self) -> float:
        return self._clock() - self._began

    def _pause(self, until: float) -> None:
        """Let the time until the next request pass, with a look where there is room for one."""
        while (now := self._now()) < until:
            if now >= until - ROOM_TO_LOOK:
                self._wait(until - now)
            elif now >= self._next_look:
                self._look_now()
            else:
                self._wait(min(self._next_look, until) - now)

    def _look_now(self) -> None:
        if self._look is not None:
            before = self._clock()
            self.seen.append(self._look())
            self._began += self._clock() - before
        self._next_look = self._now() + LOOK_EVERY

    def _send(self, spec: RequestSpec) -> None:
        prompt = self._prompt(spec)
        self._sent[spec.request_id] = spec, list(prompt)
        params = SamplingParams(
            temperature=0, max_tokens=spec.output_tokens, ignore_eos=True, detokenize=False
        )
        self._engine.submit(
            GenerationRequest(request_id=spec.request_id, prompt_token_ids=prompt, params=params)
        )

    def _prompt(self, spec: RequestSpec) -> list[int]:
        """Tokens that are equal where the workload says so; a session's turn has old answers."""
        if spec.session is not None and spec.session in self._sessions:
            prompt = self._sessions[spec.session]
        else:
            prompt = []
            for identity, tokens in spec.segments:
                if spec.session is None or identity < 0:
                    prompt = prompt + self._shared.setdefault(identity, self._draw(tokens))
        return prompt + self._draw(spec.prompt_tokens - len(prompt))

    def _draw(self, count: int) -> list[int]:
        # Between two steps: it must not take long.
        return self._random.choices(self._vocabulary, k=count)

    def _end(self, request_id: str, cached: int, now: float) -> None:
        spec, tokens = self._sent.pop(request_id)
        if spec.session is not None:
            self._sessions[spec.session] = tokens
        first = self._first.pop(request_id)
        self._results.append(
            RequestResult(
                number=spec.number,
                replica=0,
                arrival=spec.arrival,
                scheduled=first,
                first_token=first,
                finish=now,
                prompt_tokens=spec.prompt_tokens,
                output_tokens=spec.output_tokens,
                cached_tokens=cached,
                preemptions=0,
            )
        )
        for following in self._workload.after(spec, now):
            heapq.heappush(self._due, (following.arrival, following.number, following))
