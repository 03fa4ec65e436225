"""A measurement on demand: how fast this machine is now, and steps of known batches.

The machine's speed is the project's probe: a product and a copy. The steps are the engine's own: as
many requests as each batch needs, with random prompts, are submitted like anybody's, and the steps
that ran them are the points. So a measurement slows other traffic for its time. Steps that other
requests shared count only where there are no others: what they computed is known as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import msgspec

from twostroke.core.errors import InvalidRequestError, QueueFullError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.clients.base import EngineClient, OutputStream
from twostroke.inspector.model.points import Group, group_steps
from twostroke.observability.events import StepEvent
from twostroke.questions.model_facts import Ceilings, ModelFacts, Probe, StepWork

BATCHES = (1, 4, 16, 64)
# Tokens of each decoding request's prompt and answer, and of the prompt that is measured itself.
PROMPT, ANSWER, LONG_PROMPT = 32, 12, 512
LONG_PROMPTS = 3  # one after the other
# A step counts for a batch up to this factor away, and as prefill with this share of prompt tokens.
NEAR, MAINLY = 1.5, 0.9
SECONDS = 120.0  # after which a measurement is given up


class Price(msgspec.Struct):
    """What a measurement asks of the engine.

    Attributes:
        seconds: By the cost model, on an idle engine; ``None`` where it knows no such device.
        batches: That are measured: those for which the engine has room.
    """

    requests: int
    tokens: int
    seconds: float | None
    batches: list[int]


class ModelMeasurement(msgspec.Struct):
    """What was measured.

    Attributes:
        at: Wall-clock time (Unix, seconds).
        took: Seconds.
        ceilings: FLOP/s of a product with all threads, bytes/s of a copy.
        busy: Whether other requests ran meanwhile, so that the machine was not the probe's alone.
        groups: Steps of each batch, of the measurement's requests alone where there are such.
        shared: Batches (0: the prompt) whose steps other requests shared.
        missing: Those of which there is no step.
    """

    at: float
    took: float
    ceilings: Ceilings
    busy: bool
    groups: list[Group]
    shared: list[int]
    missing: list[int]


class Meter:
    """Measures one at a time, and keeps the latest result."""

    def __init__(self) -> None:
        self.latest: ModelMeasurement | None = None
        self._busy = False
        self._probe: Probe | None = None

    async def measure(self, client: EngineClient, facts: ModelFacts) -> ModelMeasurement:
        """Probe the machine, then run the batches; call on the event loop's thread.

        Raises:
            QueueFullError: One is being made, or the engine's queue is full.
            InvalidRequestError: There is nothing here that could be measured.
            TwostrokeError: The engine failed, or shuts down.
        """
        if facts.make_probe is None or not client.info.generates:
            raise InvalidRequestError("there is no engine here whose steps could be measured")
        if self._busy:
            raise QueueFullError("a measurement is being made", hint="wait for its end")
        self._busy = True
        try:
            self.latest = await self._measure(client, facts)
        finally:
            self._busy = False
        return self.latest

    async def _measure(self, client: EngineClient, facts: ModelFacts) -> ModelMeasurement:
        began, at = time.monotonic(), time.time()
        busy = client.status.stats.num_running > 0
        flops, bandwidth = await asyncio.to_thread(self._speed, facts)
        events: list[StepEvent] = []
        own: set[str] = set()
        try:
            async with asyncio.timeout(SECONDS):
                for batch in (*[0] * LONG_PROMPTS, *price_of(client, facts).batches):
                    since = _last_step(client)
                    ids = await _run(client, batch)
                    own.update(ids)
                    events += client.events(since)
        except TimeoutError as error:
            raise QueueFullError(
                f"the measurement did not end within {SECONDS:g} s",
                hint="measure when fewer requests run",
            ) from error
        sheet = facts.costs.ceilings
        batches = price_of(client, facts).batches
        groups, shared, missing = _groups(events, own, batches, facts)
        return ModelMeasurement(
            at=at,
            took=time.monotonic() - began,
            ceilings=Ceilings(
                device=facts.machine or client.info.device,
                flops=flops,
                bandwidth=bandwidth,
                cache_bytes=sheet.cache_bytes if sheet else 0,
                source="both by PyTorch, on this machine",
            ),
            busy=busy or bool(shared),
            groups=groups,
            shared=shared,
            missing=missing,
        )

    def _speed(self, facts: ModelFacts) -> tuple[float, float]:
        assert facts.make_probe is not None
        if self._probe is None:
            self._probe = facts.make_probe()
        return self._probe()


def price_of(client: EngineClient, facts: ModelFacts) -> Price:
    """What a measurement costs, and which batches the engine has room for."""
    info = client.info
    slots = info.num_blocks * info.block_size
    each = -(-(PROMPT + ANSWER) // info.block_size) * info.block_size
    batches = [
        batch
        for batch in BATCHES
        if batch <= client.scheduler_config.max_num_seqs
        and batch * each <= slots
        and info.max_model_len >= PROMPT + ANSWER
    ]
    long = _long_prompt(client)
    works = [StepWork(0, 0, ((long, 0),), 1)] * LONG_PROMPTS
    for batch in batches:
        works.append(StepWork(0, 0, ((PROMPT, 0),) * batch, batch))
        works += [StepWork(batch, batch * PROMPT, (), batch)] * (ANSWER - 1)
    seconds = [facts.costs.cost(work).seconds for work in works]
    return Price(
        requests=LONG_PROMPTS + sum(batches),
        tokens=LONG_PROMPTS * (long + 1) + sum(batches) * (PROMPT + ANSWER),
        seconds=None if None in seconds else sum(s for s in seconds if s is not None),
        batches=batches,
    )


def _long_prompt(client: EngineClient) -> int:
    budget = client.scheduler_config.max_num_batched_tokens
    chunk = client.scheduler_config.max_prefill_chunk or budget
    return max(1, min(LONG_PROMPT, budget, chunk, client.info.max_model_len - 1))


def _last_step(client: EngineClient) -> int:
    events = client.events()
    return events[-1].step if events else -1


async def _run(client: EngineClient, batch: int) -> list[str]:
    """Run one batch to its end, 0 being the single long prompt; returns the requests' ids."""
    dice = Random()
    length, answer = (PROMPT, ANSWER) if batch else (_long_prompt(client), 1)
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
    streams: list[OutputStream] = []
    ids = []
    try:
        for _ in range(max(1, batch)):
            ids.append(f"measure-{dice.getrandbits(64):x}")
            prompt = [dice.randrange(client.info.vocab_size) for _ in range(length)]
            request = GenerationRequest(request_id=ids[-1], prompt_token_ids=prompt, params=params)
            streams.append(client.submit(request))
        for stream in streams:
            async for output in stream:
                raise_output_error(output)
    finally:
        for stream in streams:
            stream.abort()  # harmless after the end
    return ids


def _groups(
    events: Sequence[StepEvent], own: set[str], batches: Sequence[int], facts: ModelFacts
) -> tuple[list[Group], list[int], list[int]]:
    """A group for the long prompt (0) and each batch, of ``own`` requests alone if there are such.

    Returns:
        The groups, the batches whose steps other requests shared, and those without a step.
    """
    groups, shared, missing = [], [], []
    for batch in (0, *batches):
        kind = [event for event in events if _is_of(batch, event)]
        alone = [
            event
            for event in kind
            if all(share.request_id in own for share in event.scheduled)
            and len(event.scheduled) == (batch or 1)
        ]
        if alone or kind:
            groups.append(group_steps(batch, alone or kind, facts.costs))
        if not kind:
            missing.append(batch)
        elif not alone:
            shared.append(batch)
    return groups, shared, missing


def _is_of(batch: int, event: StepEvent) -> bool:
    """Whether a step counts for a batch: decode of about this size, or for 0 a long prompt."""
    tokens = sum(share.num_tokens for share in event.scheduled)
    prompt = sum(share.num_prompt_tokens for share in event.scheduled)
    if batch:
        decoding = len(event.scheduled)
        return prompt == 0 and batch <= decoding * NEAR and decoding <= batch * NEAR
    return prompt > 2 * PROMPT and prompt >= MAINLY * tokens
