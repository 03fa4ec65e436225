"""What crosses between a front end and an engine: plain data with a wire form (``core/wire.py``).

A client's call is a ``GenerationRequest``. The client's side validates it (``intake.py``) and
sends an ``AddRequest``; ``AbortRequest`` and ``Close`` are the other messages to the engine. What
comes back is the stream of ``core.output.RequestOutput``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from twostroke.core.errors import ErrorMessage
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call of a client: a prompt as token ids, how to sample, and what sets it apart.

    Attributes:
        request_id: Unique among the requests in the engine.
        cache_salt: Cached prefixes are shared only between equal salts.
        priority: Lower runs first under ``--policy priority``.
        tenant: On whose behalf: ``--policy fair`` divides the engine among tenants. May be empty.
        labels: What the client calls its end user and the like; step events carry them, nothing
            else does.
        follows: One more prompt of a call whose first has been taken: a full queue refuses calls,
            not parts of them.
        adapter_id: Which adapter's weights it runs with; empty for the model's own.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    adapter_id: str = ""


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A validated call, ready to be queued.

    Attributes:
        params: Of the first sample; ``other_params``: of the others. Only the first reports the
            prompt's log-probabilities.
        seeds: One for each sample.
        max_total_tokens: Prompt and output may not exceed this together.
        arrival_time: Seconds on the engine's clock.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    other_params: SamplingParams
    seeds: list[int]
    max_total_tokens: int
    arrival_time: float
    eos_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    labels: dict[str, str] = {}
    adapter_id: str = ""


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call. ``error`` says why, where it is not the client who wants it."""

    request_id: str
    error: ErrorMessage | None = None


class ForgetRequest(msgspec.Struct, frozen=True, tag=True):
    """End all samples of a call whose outputs no longer reach a reader."""

    request_id: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """End what runs, and the engine."""


EngineMessage = AddRequest | AbortRequest | ForgetRequest | Close


def make_requests(message: AddRequest) -> list[Request]:
    """One request per sample. The first leads: the others share its prompt's blocks."""
    requests: list[Request] = []
    for index, seed in enumerate(message.seeds):
        is_only = len(message.seeds) == 1
        request = Request(
            request_id=message.request_id if is_only else f"{message.request_id}#{index}",
            parent_id=message.request_id,
            index=index,
            token_ids=list(message.prompt_token_ids),
            num_prompt_tokens=len(message.prompt_token_ids),
            params=message.other_params if index else message.params,
            max_total_tokens=message.max_total_tokens,
            eos_token_ids=message.eos_token_ids,
            seed=seed,
            bad_words_token_ids=message.bad_words_token_ids,
            arrival_time=message.arrival_time,
            priority=message.priority,
            cache_salt=message.cache_salt,
            tenant=message.tenant,
            labels=message.labels,
            adapter_id=message.adapter_id,
            leader=requests[0] if requests else None,
        )
        requests.append(request)
    return requests
