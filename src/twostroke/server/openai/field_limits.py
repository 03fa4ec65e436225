"""Limits of the fields of OpenAI's requests, and the base of its request objects.

`SamplingParams` and the routes check the limits, the API document shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen

from twostroke.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_DRAFTS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKENS,
    MAX_LOGPROBS,
    MAX_SAMPLES,
    MAX_SEED,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MIN_REPETITION_PENALTY,
)
from twostroke.server.http.body_fields import FirstMistake, StrictModel

MAX_PROMPTS = 256
MAX_MESSAGES = 8192
MAX_MESSAGE_PARTS = 8192  # over all messages
MAX_TOKEN_IDS = 2**18  # in a list of tokens to allow or ban: any vocabulary
MAX_STOP_TOKENS = 1024
MAX_LABEL_LENGTH = 512
MAX_PROMPT_TOKENS = 4_000_000
MAX_CHOICES = 1024
MAX_DOCUMENTS = 1024
# OpenAI's, with the dot that names of remote tools often have.
TOOL_NAME_PATTERN = r"^[a-zA-Z0-9_.-]{1,128}$"

_TOKEN_LIST: dict[str, Any] = {
    "maxItems": MAX_TOKEN_IDS,
    "items": {"type": "integer", "minimum": 0},
}

# Field name to JSON schema keywords, which say nothing about values of another type (null, say).
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "n": {"minimum": 1, "maximum": MAX_SAMPLES},
    "best_of": {"minimum": 1, "maximum": MAX_SAMPLES},
    "temperature": {"minimum": 0, "maximum": 100},
    "top_k": {"minimum": -1},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"minimum": MIN_REPETITION_PENALTY, "maximum": 100},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "seed": {"minimum": -(2**63), "maximum": MAX_SEED},
    "max_tokens": {"minimum": 0},
    "max_completion_tokens": {"minimum": 1},
    "min_tokens": {"minimum": 0},
    "thinking_token_budget": {"minimum": -1},
    "logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "prompt_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "speculation": {"minimum": 0, "maximum": MAX_DRAFTS},
    "truncate_prompt_tokens": {"minimum": -1},
    "stop": {
        "minLength": 1,
        "maxLength": MAX_STOP_STRING_LENGTH,
        "maxItems": MAX_STOP_STRINGS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_LENGTH},
    },
    "bad_words": {
        "maxItems": MAX_BAD_WORDS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_LENGTH},
    },
    "logit_bias": {
        "maxProperties": MAX_LOGIT_BIAS,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "stop_token_ids": {**_TOKEN_LIST, "maxItems": MAX_STOP_TOKENS},
    "banned_token_ids": _TOKEN_LIST,
    "allowed_token_ids": {"minItems": 1, **_TOKEN_LIST},
    "logprob_token_ids": {**_TOKEN_LIST, "maxItems": MAX_LOGPROB_TOKENS},
}

TokenIds = Annotated[list[int], MaxLen(MAX_TOKEN_IDS), FirstMistake()]
PromptTokens = Annotated[list[int], MaxLen(MAX_PROMPT_TOKENS), FirstMistake()]
Texts = Annotated[list[str], FirstMistake()]


class OpenAIFields(StrictModel):
    """The base of the request objects of this API."""

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = LIMITS


class RequestFields(OpenAIFields):
    """The base of whole bodies, which may bring fields of other servers."""

    is_body: ClassVar[bool] = True
