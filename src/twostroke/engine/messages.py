"""What crosses between a front end and an engine: plain data, which has a wire form (msgspec).

A client's call is a ``GenerationRequest``. The client's side validates it (``intake.py``) and
sends an ``AddRequest``; ``AbortRequest`` and ``Close`` are the other messages to the engine. What
comes back is the stream of ``core.output.RequestOutput``.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from twostroke.core.errors import ErrorMessage
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.cache_orders import CacheOrder
from twostroke.sampling.random import derive_seed


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A validated call, ready to be queued.

    Attributes:
        request: Its first sample.
        other_params: Of the other samples: only the first reports the prompt's log-probabilities.
        arrival_time: When it is sent, in seconds on the engine's clock.
    """

    request: ResolvedRequest
    other_params: SamplingParams
    arrival_time: float

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_samples(self) -> int:
        return self.request.params.n


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call. ``error`` says why, where it is not the client who wants it."""

    request_id: str
    error: ErrorMessage | None = None


class ForgetRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call whose outputs no longer reach a reader."""

    request_id: str


class ManageCache(msgspec.Struct, frozen=True, tag=True):
    """Carry out an order on the prefix cache; the answer bears the number."""

    number: int
    order: CacheOrder


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Say what runs and waits. The answer carries the same ``number``."""

    number: int
    with_blocks: bool = False


class Close(msgspec.Struct, frozen=True, tag=True):
    """End what runs, and the engine."""


EngineMessage = AddRequest | AbortRequest | ForgetRequest | ManageCache | TakeSnapshot | Close


def make_requests(message: AddRequest) -> list[Request]:
    """One request per sample. The first leads: the others share its prompt's blocks."""
    call, num_samples = message.request, message.num_samples
    if num_samples == 1:
        return [Request(call, arrival_time=message.arrival_time)]
    requests: list[Request] = []
    for index in range(num_samples):
        sample = replace(
            call,
            request_id=f"{call.request_id}#{index}",
            index=index,
            params=message.other_params if index else call.params,
            seed=derive_seed(call.seed, index) if index else call.seed,
        )
        leader = requests[0] if requests else None
        requests.append(Request(sample, arrival_time=message.arrival_time, leader=leader))
    return requests
