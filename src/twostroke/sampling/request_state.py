"""A request as executors and the sampler see it: tokens and parameters, no scheduling."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest


@dataclass(slots=True, eq=False)
class RequestState:
    """A request as executors and the sampler see it.

    Attributes:
        token_ids: All tokens that the scheduler has sent: prompt, then output.
        answer_start: See ``NewRequest``.
        edits_logits: Whether it masks, biases or penalises tokens. Most requests do not, and the
            sampler skips all of that for a batch of those.
        stop_token_ids: May not be drawn before ``params.min_tokens``.
        num_awaited: Tokens after these that the pass before draws: one, or none.
    """

    spec: ResolvedRequest
    token_ids: list[int]
    answer_start: int
    params: SamplingParams
    stop_token_ids: frozenset[int]
    edits_logits: bool
    num_awaited: int = 0

    @classmethod
    def of(cls, new: NewRequest) -> RequestState:
        spec = new.spec
        return cls(
            spec=spec,
            token_ids=new.token_ids,
            answer_start=new.answer_start,
            params=spec.params,
            stop_token_ids=spec.stop_token_ids,
            edits_logits=spec.params.edits_logits or bool(spec.bad_words_token_ids),
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
        return self.num_answer_tokens == params.answer_tokens_in_prompt

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_awaited

    @property
    def num_answer_tokens(self) -> int:
        return self.num_tokens - self.answer_start

    @property
    def answer_token_ids(self) -> list[int]:
        return self.token_ids[self.answer_start :]
