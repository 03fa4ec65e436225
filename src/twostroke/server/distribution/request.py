"""What ``POST /v1/inspect/distribution`` takes: a completion's fields, less those for several.

The answer so far comes apart from the prompt, since penalties, ``min_tokens`` and an answer's form
count its tokens. So the draw is that of a completion which has got as far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import MAX_LISTED_TOKENS, SamplingParams
from twostroke.observability.frames.own import OWN_LABEL
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.field_limits import PromptTokens
from twostroke.server.openai.generation_fields import GenerationFields

DEFAULT_TOP = 50
# Fields of a completion that ask for another form of answer, with the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "stream_options": (),
    "prompt_logprobs": (),
    "logprob_token_ids": (),
    "truncate_prompt_tokens": (),
    "return_token_ids": (True,),
    "return_tokens_as_token_ids": (False,),
}


class DistributionRequest(GenerationFields):
    """Body of ``POST /v1/inspect/distribution``."""

    prompt: str | PromptTokens
    answer_token_ids: PromptTokens | None = Field(
        None, description="The answer so far, whose next token is drawn."
    )
    top: Annotated[int, Field(ge=1, le=MAX_LISTED_TOKENS)] | None = Field(
        None, description=f"How many of the likeliest tokens are listed; {DEFAULT_TOP} by default."
    )
    add_special_tokens: bool | None = Field(
        None, description="Encode a prompt with the model's BOS; true by default."
    )

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """The sampling parameters; without ``max_tokens`` one token is drawn."""
        self._check_fields()
        overrides: dict[str, Any] = {
            "max_tokens": 1 if self.max_tokens is None else self.max_tokens,
            "logprobs": 0,
            "distribution": self.top or DEFAULT_TOP,
            "answer_tokens_in_prompt": len(self.answer_token_ids or ()),
        }
        return self.sampling_params(defaults, **overrides)

    def labels(self) -> dict[str, str]:
        """What a completion has, and the mark of a request that an inspector has made."""
        return {**super().labels(), OWN_LABEL: "next token"}

    def _check_fields(self) -> None:
        if isinstance(self.prompt, str):
            check_unicode("prompt", [self.prompt])
        for name, neutral in _NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise InvalidRequestError(
                    f"{name} has no meaning for a distribution",
                    param=name,
                    hint="leave it out, or ask /v1/completions",
                )
        if self.prompt_only:
            raise InvalidRequestError(
                "max_tokens must be at least 1: a token has to be drawn", param="max_tokens"
            )
        self.check_combinations()
