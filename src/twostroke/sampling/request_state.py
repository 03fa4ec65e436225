"""A request as executors and the sampler see it: tokens and parameters, no scheduling."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twostroke.core.pooling import Pooling
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest


@dataclass(slots=True, eq=False)
class RequestState:
    """A request as executors and the sampler see it.

    Attributes:
        token_ids: All tokens that the scheduler has sent: prompt, then output.
        num_prompt_tokens: See ``NewRequest``.
        edits_logits: Whether it masks, biases or penalises tokens. Most requests do not, and the
            sampler skips all of that for a batch of those.
        pooling: The vector to be made of its prompt; then nothing is drawn.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    edits_logits: bool
    pooling: Pooling | None = None

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
            new.pooling,
        )

    def after(self, token_ids: list[int]) -> RequestState:
        """The request as it will be once ``token_ids`` are drawn, if they are: another object."""
        return replace(self, token_ids=self.token_ids + token_ids)

    @property
    def shows_distribution(self) -> bool:
        """Whether the distribution of the next token is wanted: if it is the first that is drawn.

        Tokens of the answer that came with the prompt were not.
        """
        params = self.params
        if params.distribution is None:
            return False
        return self.num_output_tokens == params.answer_tokens_in_prompt

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
