"""A request as executors and the sampler see it: tokens and parameters, no scheduling."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest


@dataclass(slots=True, eq=False)
class RequestState:
    """A request as executors and the sampler see it.

    Attributes:
        token_ids: All tokens that the scheduler has sent: prompt, then output.
        edits_logits: Whether it masks, biases or penalises tokens. Most requests do not, and the
            sampler skips all of that for a batch of those.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    edits_logits: bool

    @classmethod
    def of(cls, new: NewRequest) -> RequestState:
        return cls(
            new.request_id,
            list(new.token_ids),
            new.num_prompt_tokens,
            new.params,
            new.seed,
            new.stop_token_ids,
            new.bad_words_token_ids,
            new.params.edits_logits or bool(new.bad_words_token_ids),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
