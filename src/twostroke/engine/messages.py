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
from twostroke.core.pooling import NOTHING_DRAWN, Pooling, PoolingParams
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.cache_orders import CacheOrder


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
        num_following_samples: Samples of the further prompts of its call, all of which the queue
            must take with it.
        adapter_id: Which adapter's weights it runs with; empty for the model's own.
        prediction_token_ids: What the answer is expected to be: drafts come from it, where the
            engine speculates. A wrong one changes no answer.
        pooling: The vector that is wanted instead of tokens; see ``pooling_request``.
        ttft_target: Seconds within which its first token is due; by default its key's target.
        waited: Seconds since the client's call arrived, which latencies and targets count.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    num_following_samples: int = 0
    adapter_id: str = ""
    prediction_token_ids: list[int] = field(default_factory=list)
    pooling: PoolingParams | None = None
    ttft_target: float | None = None
    waited: float = 0.0


def pooling_request(
    request_id: str, prompt_token_ids: list[int], pooling: PoolingParams
) -> GenerationRequest:
    """A call that wants a vector of its prompt, and no tokens."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=NOTHING_DRAWN,
        pooling=pooling,
    )


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A validated call, ready to be queued.

    Attributes:
        params: Of the first sample; ``other_params``: of the others. Only the first reports the
            prompt's log-probabilities.
        seeds: One for each sample.
        max_total_tokens: Prompt and output may not exceed this together.
        arrival_time: When it is sent, in seconds on the engine's clock.
        waited: Seconds since the client's call arrived.
        ttft_target: Seconds after that call by which the first token is due, if there is a target.
        is_part: The client's call has other prompts, too.
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
    prediction_token_ids: list[int] = []
    pooling: Pooling | None = None
    ttft_target: float | None = None
    waited: float = 0.0
    is_part: bool = False


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
            prediction_token_ids=message.prediction_token_ids,
            pooling=message.pooling,
            leader=requests[0] if requests else None,
            ttft_target=message.ttft_target,
            waited=message.waited,
            is_part=message.is_part,
        )
        requests.append(request)
    return requests
