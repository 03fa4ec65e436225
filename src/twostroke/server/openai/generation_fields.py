"""The fields that chat and text completions share: OpenAI's, and vLLM's extensions.

A field works, or is ignored and named (``server/foreign_fields.py``), or is a 400. ``null`` means
the default for every field, as in OpenAI's API. Types are strict (``"5"`` is no number); ranges are
checked where the meaning is known, in ``SamplingParams``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from twostroke.core.structured_outputs import PARAM
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.answer_form import (
    CLOSING_SWITCH,
    AskedForms,
    ResponseFormatFields,
    StructuredOutputsFields,
    answer_form,
    of_response_format,
)
from twostroke.server.openai.field_limits import (
    MAX_LABEL_LENGTH,
    MAX_STOP_TOKENS,
    OpenAIFields,
    RequestFields,
    Texts,
    TokenIds,
)

Label = Annotated[str, MaxLen(MAX_LABEL_LENGTH)]
Deadline = Annotated[int, Field(ge=1, le=86_400_000)]
DEADLINE = (
    "Milliseconds within which the first token is due, for --policy deadline and --admission"
    " predicted; by default the TTFT target of the key."
)
LABELLED = "shown in the request log and in step events"
OLDER = "Older name of structured_outputs.{}."
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
        description="Every chunk carries the usage so far, over all choices.",
    )


class GenerationFields(RequestFields):
    """The fields that chat and text completions share."""

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    n: int | None = Field(None, description="Number of answers to each prompt.")
    best_of: int | None = Field(None, description="Only as many as n: all are returned.")
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
    logprob_token_ids: TokenIds | None = Field(
        None,
        description="Log-probabilities of these tokens instead of the likeliest; needs logprobs.",
    )
    prompt_logprobs: int | None = Field(None, description="Not with stream.")
    response_format: ResponseFormatFields | None = Field(
        None, description="The form of the answer: text, json_object, json_schema, structural_tag."
    )
    structured_outputs: StructuredOutputsFields | None = Field(
        None, description="The form of the answer, in vLLM's terms."
    )
    guided_json: str | dict[str, Any] | None = Field(None, description=OLDER.format("json"))
    guided_regex: str | None = Field(None, description=OLDER.format("regex"))
    guided_choice: list[str] | None = Field(None, description=OLDER.format("choice"))
    guided_grammar: str | None = Field(None, description=OLDER.format("grammar"))
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
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Log-probabilities call a token token_id:7 instead of by its text."
    )
    return_drafts: bool | None = Field(
        None,
        description=(
            "Chunks name the guesses of --speculation that their step verified, right and wrong;"
            " only with stream."
        ),
    )
    thinking_token_budget: int | None = Field(
        None,
        description=(
            "Most tokens of the thought before the answer, whose end is then forced; -1: no bound."
            " Models that do not think ignore it."
        ),
    )
    priority: int | None = Field(None, description="Lower runs first under --policy priority.")
    deadline_ms: Deadline | None = Field(None, description=DEADLINE)
    speculation: bool | int | None = Field(
        None,
        description=(
            "False: no drafts for this request; a number: the most in a step. The answer is"
            " the same."
        ),
    )
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
        """Whether usage comes at the end; as in vLLM, also where only each chunk's is wanted."""
        options = self.stream_options
        given = options and options.include_usage
        return self.continuous_usage if given is None else bool(given)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return bool(options and options.continuous_usage_stats) and not self.refuses_usage

    @property
    def refuses_usage(self) -> bool:
        """Whether no chunk is to have usage, which then is more than saying nothing."""
        options = self.stream_options
        return options is not None and options.include_usage is False

    @property
    def may_call(self) -> bool:
        """Whether the answer may call tools."""
        return False

    def asked_forms(self) -> AskedForms:
        """Each field that asks for a form of the answer, and what it says."""
        asked: dict[str, dict[str, Any]] = {}
        if self.response_format is not None and self.response_format.type != "text":
            asked["response_format"] = of_response_format(self.response_format)
        if (form := self.structured_outputs) is not None:
            given = {name: value for name, value in form.items() if value is not None}
            # Alone it speaks of the arguments of calls.
            if given.keys() != {CLOSING_SWITCH} or not self.may_call:
                asked[PARAM] = given
        older = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        for kind, value in older.items():
            if value is not None:
                asked[f"guided_{kind}"] = {kind: value}
        return asked

    @property
    def prompt_only(self) -> bool:
        """Whether no answer is wanted: to score a prompt, or to have it cached."""
        return self.max_tokens == 0

    def check_combinations(self) -> None:
        """Refuse combinations that have no meaning, and texts that are not Unicode."""
        texts: dict[str, str | list[str]] = {"cache_salt": self.cache_salt or "", **self.labels()}
        texts |= {"stop": self.stop or [], "bad_words": self.bad_words or []}
        for param, words in texts.items():
            check_unicode(param, [words] if isinstance(words, str) else words)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequestError(
                f"best_of is {self.best_of}, but n is {self.n or 1}: answers are not ranked here",
                param="best_of",
                hint="leave it out, or ask for n answers and choose among them",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
        if self.return_drafts and not self.stream:
            raise InvalidRequestError(
                "return_drafts needs stream=true: it tells of each step", param="return_drafts"
            )
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
        if self.prompt_only:
            # One token is drawn, since a prompt alone runs nowhere; the answer does not show it.
            overrides["max_tokens"] = 1
        if isinstance(self.speculation, bool):
            values["speculation"] = None if self.speculation else 0
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        values["structured_outputs"] = answer_form(self.asked_forms())
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
                ttft_target=None if self.deadline_ms is None else self.deadline_ms / 1000,
                cache_salt=self.cache_salt or "",
                labels=labels,
                follows=i > 0,
                num_following_samples=(len(prompts) - 1) * params.n if i == 0 else 0,
            )
            for i, prompt in enumerate(prompts)
        ]


# Fields of a request that `SamplingParams` has under the same name, with the same meaning.
SAMPLING_FIELDS = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in GenerationFields.model_fields
    and field.name not in ("logit_bias", "structured_outputs")  # they have another form in JSON
)


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise InvalidRequestError(
                f"logit_bias has the key {key[:40]!a}, which is no token id",
                param="logit_bias",
                hint='map token ids, written as strings, to numbers: {"42": -100}',
            )
    return {int(key): value for key, value in biases.items()}
