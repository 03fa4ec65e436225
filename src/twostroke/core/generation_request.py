"""What a client asks for, and the same once an engine's side has checked it.

It goes unchanged from the API's route to the sampler: ``Request``, ``NewRequest`` and
``RequestState`` hold a ``ResolvedRequest``. A new field of requests is one line here, one in the
dialect that reads it and one where it matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from twostroke.core.pooling import Pooling, PoolingParams
from twostroke.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call of a client: a prompt as token ids, how to sample, and what sets it apart.

    Attributes:
        request_id: Unique among the requests in the engine.
        cache_salt: Cached prefixes are shared only between equal salts.
        adapter: Name of the LoRA adapter that it runs with; resolved, with a digest after it.
        priority: Lower runs first under ``--policy priority``.
        tenant: On whose behalf: ``--policy fair`` divides the engine among tenants. May be empty.
        labels: What the client calls its end user and the like; step events carry them, nothing
            else does.
        follows: One more prompt of a call whose first has been taken: a full queue refuses calls,
            not parts of them.
        num_following_samples: Samples of the further prompts of its call, all of which the queue
            must take with it.
        prediction_token_ids: What the answer is expected to be: drafts come from it, where the
            engine speculates. A wrong one changes no answer.
        pooling: The vector that is wanted instead of tokens; see ``pooling_request``.
        ttft_target: Seconds within which its first token is due; by default its key's target.
        waited: Seconds since the client's call arrived, which latencies and targets count.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    num_following_samples: int = 0
    prediction_token_ids: Sequence[int] = field(default_factory=list)
    pooling: PoolingParams | None = None
    ttft_target: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest(GenerationRequest):
    """One sample of a validated call, with all that follows from the model and the settings.

    Attributes:
        parent_id: The id that the client knows (``request_id`` unless ``n > 1``).
        index: Which of the ``n`` samples this is.
        seed: This sample's, 64 bits; with a position it decides that position's draw.
        max_total_tokens: Prompt and output may not exceed this together.
        eos_token_ids: The model's end tokens (ignored under ``ignore_eos``).
        bad_words_token_ids: ``params.bad_words`` as token sequences.
        vector: The vector that is made of its prompt, where ``pooling`` asks for one; then nothing
            is drawn.
    """

    parent_id: str
    max_total_tokens: int
    index: int = 0
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    vector: Pooling | None = None

    @classmethod
    def of(cls, call: GenerationRequest, **resolved: Any) -> ResolvedRequest:
        """``call`` with what was resolved; fields that both have are those of ``resolved``."""
        asked = {each.name: getattr(call, each.name) for each in fields(GenerationRequest)}
        return cls(**{"parent_id": call.request_id, **asked, **resolved})

    @property
    def is_part(self) -> bool:
        """Whether its client's call has other prompts, too."""
        return self.follows or self.num_following_samples > 0

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """All tokens that end it: the client's and, unless ``ignore_eos``, the model's."""
        asked = frozenset(self.params.stop_token_ids)
        return asked if self.params.ignore_eos else asked | self.eos_token_ids
