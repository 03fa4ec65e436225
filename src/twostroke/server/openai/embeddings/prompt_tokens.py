"""From texts, pairs of texts or token ids to the prompts of vectors, cut where that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, context_overflow
from twostroke.server.generation.encoding import check_length, check_tokens, encode_text
from twostroke.server.state.served_model import ServedModel
from twostroke.text.judgements import encode_judgement
from twostroke.text.tokenizer import LONG_TEXT


@dataclass(frozen=True, slots=True)
class PoolingPrompt:
    """The tokens of a text or of a pair; of a pair, where its second text begins."""

    token_ids: list[int]
    second_text_start: int | None = None


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Makes the prompts of one call.

    Args:
        max_tokens: Cut texts at their end to this many tokens; -1: to the model's context; ``None``
            refuses what is too long.
    """

    model: ServedModel
    max_tokens: int | None
    add_special_tokens: bool = True

    async def encode(self, prompt: str | list[int], param: str) -> PoolingPrompt:
        """The prompt of a text or of token ids.

        Raises:
            InvalidRequestError: It has no tokens, or one that the model does not have.
            RequestTooLargeError: It is longer than the model's context.
        """
        if isinstance(prompt, str):
            tokens = await self._encode_text(prompt, param)
        else:
            tokens = prompt if self._limit is None else prompt[: self._limit]
            if len(tokens) <= self._context:
                check_tokens(self.model, prompt, param)
        self._check(tokens, param)
        return PoolingPrompt(tokens)

    async def encode_pair(
        self, first: str, second: str, param: str, instruction: str | None = None
    ) -> PoolingPrompt:
        """The prompt of two texts as the model takes them; the second is cut.

        They are joined by its tokenizer; or, where it has no head for pairs, by the question
        whether the second answers the first.

        Args:
            instruction: The instruction of that question.
        """
        check_length(self.model, len(first) + len(second), param)
        tokenizer = self.model.tokenizer

        def join(text: str) -> PoolingPrompt:
            if self.model.client.info.pooling.score_tokens is None:
                return PoolingPrompt(*tokenizer.encode_pair(first, text))
            encoder = self.model.chat_encoder
            return PoolingPrompt(encode_judgement(encoder, first, text, instruction))

        def encode() -> PoolingPrompt:
            return join(_fit(lambda text: join(text).token_ids, second, self))

        is_long = len(first) + len(second) + len(instruction or "") > LONG_TEXT
        prompt = await asyncio.to_thread(encode) if is_long else encode()
        self._check(prompt.token_ids, param)
        return prompt

    async def _encode_text(self, text: str, param: str) -> list[int]:
        specials = self.add_special_tokens
        if self._limit is None:
            return await encode_text(
                self.model, text, add_special_tokens=specials, must_fit=True, param=param
            )
        check_length(self.model, len(text), param)
        tokenizer = self.model.tokenizer

        def encode() -> list[int]:
            return tokenizer.encode(
                _fit(lambda part: tokenizer.encode(part, specials), text, self), specials
            )

        return await asyncio.to_thread(encode) if len(text) > LONG_TEXT else encode()

    def prefix(self, text: str, num_tokens: int) -> str:
        return self.model.tokenizer.prefix(text, num_tokens)

    @property
    def _context(self) -> int:
        return self.model.client.info.max_model_len

    @property
    def _limit(self) -> int | None:
        return self._context if self.max_tokens == -1 else self.max_tokens

    def excess(self, tokens: list[int]) -> int:
        """Tokens beyond the limit, if texts are to be cut."""
        return 0 if self._limit is None else max(0, len(tokens) - self._limit)

    def _check(self, tokens: list[int], param: str) -> None:
        if not tokens:
            raise InvalidRequestError(
                f"{param} has no tokens", param=param, hint="send at least one word"
            )
        if len(tokens) > self._context:
            raise RequestTooLargeError(
                context_overflow(self._context, f"{param} has {len(tokens)} tokens"),
                needed=len(tokens),
                available=self._context,
                param=param,
                hint="send less text, or truncate_prompt_tokens: -1",
            )


def _fit(encode: Callable[[str], list[int]], text: str, encoder: PromptEncoder) -> str:
    """The longest beginning of ``text``, about, that ``encode`` makes no more tokens of."""
    tokens = encode(text)
    excess = encoder.excess(tokens)
    num_kept = len(tokens)
    while excess and text:
        num_kept = max(0, min(num_kept, len(tokens)) - excess)
        text = encoder.prefix(text, num_kept)
        tokens = encode(text)
        excess = encoder.excess(tokens)
    return text
