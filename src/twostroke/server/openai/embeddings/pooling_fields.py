"""The fields that embeddings, scores and rankings share, and what the engine is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.pooling import NOTHING_DRAWN, PoolingParams
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.embeddings.prompt_tokens import PoolingPrompt
from twostroke.server.openai.field_limits import RequestFields
from twostroke.server.openai.generation_fields import LABELLED, Label

# As OpenAI; clients such as LangChain send 1,000 texts at once.
MAX_INPUTS = 2048


class PoolingFields(RequestFields):
    """The fields of all requests that want vectors of texts."""

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        description=(
            "Cut each text at its end so that at most this many tokens are left, those that the"
            " model adds included; -1: as many as the model takes. By default a text that is too"
            " long is an error."
        ),
    )
    add_special_tokens: bool | None = Field(
        None, description="Encode texts with the tokens that the model adds; true by default."
    )
    priority: int | None = Field(None, description="Lower runs first under --policy priority.")
    cache_salt: Label | None = Field(
        None, description="Cached prefixes are shared only between equal salts."
    )
    user: Label | None = Field(None, description=f"The client's name for its end user; {LABELLED}.")

    def check_shared_fields(self) -> None:
        """Refuse values that have no meaning, and texts that are not Unicode."""
        check_unicode("user", [self.user or ""])
        check_unicode("cache_salt", [self.cache_salt or ""])
        length = self.truncate_prompt_tokens
        if length is not None and length != -1 and length < 1:
            raise InvalidRequestError(
                "truncate_prompt_tokens must be -1 or at least 1", param="truncate_prompt_tokens"
            )

    def pooling_requests(
        self, request_id: str, prompts: Sequence[PoolingPrompt], params: PoolingParams
    ) -> list[GenerationRequest]:
        """What the engine is asked: one request for each prompt."""
        return [
            replace(
                request,
                priority=self.priority or 0,
                cache_salt=self.cache_salt or "",
                labels={} if self.user is None else {"user": self.user},
            )
            for request in make_pooling_requests(request_id, prompts, params)
        ]


def make_pooling_requests(
    request_id: str, prompts: Sequence[PoolingPrompt], params: PoolingParams
) -> list[GenerationRequest]:
    """A request for each prompt of one call, which the queue takes or refuses together."""
    requests = []
    for index, prompt in enumerate(prompts):
        pooling = params
        if prompt.second_text_start is not None:
            pooling = structs.replace(params, second_text_start=prompt.second_text_start)
        name = request_id if len(prompts) == 1 else f"{request_id}-{index}"
        requests.append(
            replace(
                pooling_request(name, prompt.token_ids, pooling),
                follows=index > 0,
                num_following_samples=len(prompts) - 1 if index == 0 else 0,
            )
        )
    return requests


def pooling_request(
    request_id: str, prompt_token_ids: Sequence[int], pooling: PoolingParams
) -> GenerationRequest:
    """A call that wants a vector of its prompt, and no tokens."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=NOTHING_DRAWN,
        pooling=pooling,
    )
