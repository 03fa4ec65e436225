"""The object that ``/v1/inspect/distribution`` answers with."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from twostroke.core.distribution import Distribution, Stage
from twostroke.core.errors import EngineError
from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.openai.logprobs import LOWEST_LOGPROB
from twostroke.server.openai.usage import Usage, make_usage
from twostroke.text.tokenizer import Tokenizer


class ListedToken(Struct, kw_only=True):
    """A token in each stage, see ``ShapedToken``; bytes that are no character are escaped."""

    id: int
    text: str
    logprob: float
    rank: int
    probabilities: list[float]
    removed_by: str | None
    begin: float
    end: float


class DrawnToken(Struct):
    """A token of the answer, with the model's own log-probability, before all filters."""

    id: int
    text: str
    logprob: float
    rank: int


class NextToken(Struct, kw_only=True):
    """The distribution of the first token that was drawn, and the tokens that were drawn.

    Attributes:
        seed: The seed as text, since JSON's readers round such numbers.
        token: The id of the first drawn token.
        drawn: ``max_tokens`` tokens, unless the answer ended.
    """

    object: str = "inspect.distribution"
    id: str
    model: str
    position: int
    seed: str
    uniform: float | None
    token: int
    stages: list[Stage]
    tokens: list[ListedToken]
    drawn: list[DrawnToken]
    finish_reason: str | None
    usage: Usage


class NextTokenFormat:
    """Implements ``ResponseFormat``."""

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer) -> None:
        self._request_id, self._model, self._tokenizer = request_id, model, tokenizer

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        raise AssertionError("distributions are not streamed")

    def failure(self, error: Exception) -> bytes:
        raise AssertionError("distributions are not streamed")

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> NextToken:
        (answer,) = answers
        if answer.distribution is None:
            raise EngineError("this engine does not tell its distributions")
        return self._next_token(answer, answer.distribution, tokens)

    def _next_token(
        self, answer: CollectedAnswer, distribution: Distribution, tokens: CallTokens
    ) -> NextToken:
        return NextToken(
            id=self._request_id,
            model=self._model,
            position=distribution.position,
            seed=str(distribution.seed),
            uniform=distribution.uniform,
            token=distribution.token_id,
            stages=distribution.stages,
            tokens=[
                ListedToken(
                    id=token.token_id,
                    text=self._text(token.token_id),
                    logprob=max(token.logprob, LOWEST_LOGPROB),
                    rank=token.rank,
                    probabilities=token.probabilities,
                    removed_by=token.removed_by,
                    begin=token.begin,
                    end=token.end,
                )
                for token in distribution.tokens
            ],
            drawn=[
                DrawnToken(
                    token_id,
                    self._text(token_id),
                    max(position.chosen.logprob, LOWEST_LOGPROB),
                    position.chosen.rank,
                )
                for token_id, position in zip(answer.token_ids, answer.logprobs)
            ],
            finish_reason=answer.finish_reason and answer.finish_reason.value,
            usage=make_usage(tokens),
        )

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", errors="backslashreplace")
