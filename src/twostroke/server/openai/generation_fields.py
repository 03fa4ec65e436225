"""The fields that chat and text completions share: OpenAI's, and vLLM's extensions.

A field that is accepted works; any other is a 400. ``null`` means the default for every field, as
in OpenAI's API. Types are strict (``"5"`` is no number); ranges are checked where the meaning is
known, in ``SamplingParams``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from twostroke.engine.messages import GenerationRequest
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.field_limits import (
    MAX_LABEL_LENGTH,
    MAX_STOP_TOKENS,
    OpenAIFields,
    Texts,
    TokenIds,
)

Label = Annotated[str, MaxLen(MAX_LABEL_LENGTH)]
LABELLED = "shown in the request log and in step events"
MODEL_DEFAULT = "By default the model's own (generation_config.json)"


def _check_num_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise PydanticCustomError("too_long", "too long", {"max_length": MAX_LOGIT_BIAS})
    return value


class StreamOptions(OpenAIFields):
    """What a streamed answer carries besides its text."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage.")
    continuous_usage_stats: bool | None = Field(
        None,
        description="With include_usage: every chunk carries the usage so far, over all choices.",
    )


class GenerationFields(OpenAIFields):
    """The fields that chat and text completions share."""

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    n: int | None = Field(None, description="Number of answers to each prompt.")
    temperature: float | None = Field(None, description=f"0 is greedy. {MODEL_DEFAULT}, else 1.")
    top_k: int | None = Field(
        None, description=f"Keep the k likeliest tokens; 0 or -1 keeps all. {MODEL_DEFAULT}."
    )
    top_p: float | None = Field(None, description=f"{MODEL_DEFAULT}, else 1.")
    min_p: float | None = Field(None, description=f"{MODEL_DEFAULT}, else 0.")
    repetition_penalty: float | None = Field(None, description=f"{MODEL_DEFAULT}, else 1.")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_check_num_biases)] = Field(
        None, description="Token id to a value from -100 to 100."
    )
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Annotated[Texts, MaxLen(MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[TokenIds, MaxLen(MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: TokenIds | None = None
    banned_token_ids: TokenIds | None = None
    bad_words: Annotated[Texts, MaxLen(MAX_BAD_WORDS)] | None = None
    prompt_logprobs: int | None = Field(None, description="Not with stream.")
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: int | None = Field(
        None,
        description=(
            "Keep only the last this many tokens of the prompt; -1: as many as fit beside"
            " max_tokens."
        ),
    )
    return_token_ids: bool | None = Field(
        None, description="Return the token ids of prompt and answer."
    )
    priority: int | None = Field(None, description="Lower runs first under --policy priority.")
    cache_salt: Label | None = Field(
        None, description="Cached prefixes are shared only between equal salts."
    )
    # These three are labels and change no answer: the request log and the step events carry them.
    user: Label | None = Field(None, description=f"The client's name for its end user; {LABELLED}.")
    safety_identifier: Label | None = Field(None, description=f"Newer name of user; {LABELLED}.")
    prompt_cache_key: Label | None = Field(
        None,
        description=f"The client's name for a shared prefix, which is found without; {LABELLED}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_best_of(cls, data: Any) -> Any:
        """``best_of`` equal to ``n`` asks for nothing: of so many answers, all are returned."""
        if isinstance(data, dict) and type(n := data.get("best_of")) is int and n == data.get("n"):
            return {name: value for name, value in data.items() if name != "best_of"}
        return data

    def labels(self) -> dict[str, str]:
        """What the client calls its end user and its prefix, by field."""
        fields = {
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check_combinations(self) -> None:
        """Refuse combinations that have no meaning, and texts that are not Unicode."""
        texts: dict[str, str | list[str]] = {"cache_salt": self.cache_salt or "", **self.labels()}
        texts |= {"stop": self.stop or [], "bad_words": self.bad_words or []}
        for param, words in texts.items():
            check_unicode(param, [words] if isinstance(words, str) else words)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true", param="stream_options")
        if self.continuous_usage and not self.include_usage:
            param = "stream_options.continuous_usage_stats"
            raise InvalidRequestError(f"{param} needs include_usage=true", param=param)
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
        length = self.truncate_prompt_tokens
        if length is not None and length != -1 and length < 1:
            raise InvalidRequestError(
                "truncate_prompt_tokens must be -1 or at least 1", param="truncate_prompt_tokens"
            )

    def sampling_params(self, defaults: Mapping[str, float], **overrides: Any) -> SamplingParams:
        """The sampling fields, validated: ``overrides``, else as given, else ``defaults``."""
        values = {**defaults} | {
            name: value for name in SAMPLING_FIELDS if (value := getattr(self, name)) is not None
        }
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        return SamplingParams(**(values | overrides))

    def engine_requests(
        self, request_id: str, prompts: Sequence[list[int]], params: SamplingParams
    ) -> list[GenerationRequest]:
        """What the engine is asked: one request for each prompt (token ids)."""
        labels = self.labels()
        return [
            GenerationRequest(
                request_id=request_id if len(prompts) == 1 else f"{request_id}-{i}",
                prompt_token_ids=prompt,
                params=params,
                priority=self.priority or 0,
                cache_salt=self.cache_salt or "",
                labels=labels,
                follows=i > 0,
            )
            for i, prompt in enumerate(prompts)
        ]


# Fields of a request that `SamplingParams` has under the same name, with the same meaning.
SAMPLING_FIELDS = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in GenerationFields.model_fields and field.name != "logit_bias"  # JSON's keys
)


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in biases):
        raise InvalidRequestError(
            "logit_bias must map token ids, written as strings, to numbers", param="logit_bias"
        )
    return {int(key): value for key, value in biases.items()}
