"""What clients may send: OpenAI's fields and vLLM's extensions. A field that is accepted works; any
other is a 400.

``null`` means the default for every field, as in OpenAI's API. Types are strict (``"5"`` is no
number); ranges are checked where the meaning is known, in ``SamplingParams``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import MAX_BAD_WORDS, MAX_STOP_STRINGS, SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.server.limits import (
    MAX_CHOICES,
    MAX_CONTEXT_CHARS,
    MAX_DOCUMENTS,
    MAX_LABEL_LENGTH,
    MAX_MESSAGE_PARTS,
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_STOP_TOKENS,
)
from twostroke.server.strict import FirstMistake, StrictModel, Texts, TokenIds, Tokens, few_biases
from twostroke.text.context import DocumentOrder
from twostroke.text.context_report import Strategy

Label = Annotated[str, MaxLen(MAX_LABEL_LENGTH)]
LABELLED = "shown in the request log and in step events"
MODEL_DEFAULT = "By default the model's own (generation_config.json)"


class StreamOptions(StrictModel):
    """What a streamed answer carries besides its text."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage.")
    continuous_usage_stats: bool | None = Field(
        None,
        description="With include_usage: every chunk carries the usage so far, over all choices.",
    )


# Fields of a request that are SamplingParams' own, under the same name.
SAMPLING_FIELDS = (
    "n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "allowed_token_ids",
    "banned_token_ids", "bad_words", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


class GenerationFields(StrictModel):
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
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(few_biases)] = Field(
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
    # These three say who asks and change no answer: the request log and the step events carry them.
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

    def kept_prompt_tokens(self, info: ExecutorInfo, params: SamplingParams) -> int | None:
        """How many tokens a prompt is cut to, if it has more; ``None``: it is not cut."""
        if self.truncate_prompt_tokens != -1:
            return self.truncate_prompt_tokens
        return max(1, info.max_model_len - (params.max_tokens or 1))

    def most_prompt_tokens(self, info: ExecutorInfo) -> int | None:
        """How many tokens of a prompt can be of use; ``None`` where all but the last are cut off
        anyway.
        """
        return info.max_model_len if self.truncate_prompt_tokens is None else None

    def check_together(self) -> None:
        """Refuse combinations that have no meaning, and text that is none."""
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
        kept = self.truncate_prompt_tokens
        if kept is not None and kept != -1 and kept < 1:
            raise InvalidRequestError(
                "truncate_prompt_tokens must be -1 or at least 1", param="truncate_prompt_tokens"
            )

    def sampling_params(self, defaults: Mapping[str, float], **overrides: Any) -> SamplingParams:
        """The sampling fields that were given, over the model's ``defaults``, validated;
        ``overrides`` win.
        """
        values = {**defaults} | {
            name: value for name in SAMPLING_FIELDS if (value := getattr(self, name)) is not None
        }
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        return SamplingParams(**(values | overrides))


class ContentPart(StrictModel):
    """One piece of a message; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One turn. What clients echo back of an answer (``refusal``, ``tool_calls`` ...) may be there,
    but empty.
    """

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "name": (), "refusal": (), "tool_calls": ([],), "tool_call_id": (), "function_call": (), "audio": (),
        "annotations": ([],), "reasoning": (), "reasoning_content": (),
    }  # fmt: skip

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], FirstMistake()]


def _countable(messages: Any) -> Any:
    """Parts are few over all messages: one that says nothing takes 30 bytes of a body, and
    microseconds to check.
    """
    contents = (
        [m.get("content") for m in messages if isinstance(m, dict)]
        if isinstance(messages, list)
        else []
    )
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_MESSAGE_PARTS:
        raise PydanticCustomError(
            "too_long", "too long", {"max_length": MAX_MESSAGE_PARTS, "of": "parts of content"}
        )
    return messages


Messages = Annotated[
    list[ChatMessage], MinLen(1), MaxLen(MAX_MESSAGES), FirstMistake(), BeforeValidator(_countable)
]


class DocumentFields(StrictModel):
    """Something retrieved for the model to read; a string is a document with that text."""

    text: str = Field(min_length=1)
    id: str | int | None = Field(
        None, description="How prompt and usage call it; by default its place, from 1."
    )
    title: str | None = None
    score: float | None = Field(
        None,
        allow_inf_nan=False,
        description="More is better. All documents have one, or BM25 ranks them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"text": data} if isinstance(data, str) else data


class ContextFields(StrictModel):
    """How the prompt is put together when not everything fits."""

    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of the prompt; by default the model's context less max_tokens.",
    )
    strategy: Strategy | None = Field(None, description="What goes first; by default drop_oldest.")
    document_order: DocumentOrder | None = Field(
        None, description="By default given: as in the request."
    )


class ChatCompletionRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False), "functions": ([],),
        "function_call": ("none", "auto"), "response_format": ({"type": "text"},), "audio": (),
        "modalities": (["text"],), "prediction": (), "reasoning_effort": (), "service_tier": ("auto", "default"),
        "store": (False,), "metadata": ({},), "web_search_options": (), "verbosity": (),
        "prompt_cache_options": (), "prompt_cache_retention": (), "moderation": (), "best_of": (1,), "echo": (False,),
        "use_beam_search": (False,), "length_penalty": (1.0, 1), "guided_json": (), "guided_regex": (),
        "guided_choice": (), "guided_grammar": (), "structured_outputs": (), "chat_template": (),
        "chat_template_kwargs": ({},), "mm_processor_kwargs": (),
    }  # fmt: skip

    messages: Messages
    max_completion_tokens: int | None = Field(None, description="Newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="Needs logprobs.")
    add_generation_prompt: bool | None = Field(
        None, description="Open the assistant's turn; true by default."
    )
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message instead of a new one."
    )
    add_special_tokens: bool | None = Field(
        None, description="Add the model's BOS; false by default: templates do."
    )
    documents: Annotated[list[DocumentFields], MaxLen(MAX_DOCUMENTS), FirstMistake()] | None = (
        Field(
            None,
            description=(
                "Texts or objects, written behind the system prompt or where the template has them."
            ),
        )
    )
    context: ContextFields | None = Field(
        None, description="Shorten the prompt to fit; else what is too long fails."
    )

    @property
    def is_assembled(self) -> bool:
        """Whether the prompt is put together to fit, rather than refused where it does not."""
        return bool(self.documents) or self.context is not None

    def check_context(self) -> None:
        """Refuse what cannot be put together."""
        documents = self.documents or []
        if self.truncate_prompt_tokens is not None:
            message = "truncate_prompt_tokens cuts blindly and excludes documents and context"
            raise InvalidRequestError(
                message, param="truncate_prompt_tokens", hint="use context.max_tokens"
            )
        if self.add_special_tokens:
            message = "add_special_tokens is not supported together with documents or context"
            raise InvalidRequestError(
                message, param="add_special_tokens", hint="leave it out; templates write BOS"
            )
        for i, document in enumerate(documents):
            check_unicode(f"documents[{i}].text", [document.text])
            check_unicode(f"documents[{i}].title", [document.title or ""])
            check_unicode(f"documents[{i}].id", [str(document.id)])
            if (document.score is None) != (documents[0].score is None):
                missing = i if document.score is None else 0
                message = f"documents[{missing}].score is missing, while other documents have one"
                raise InvalidRequestError(
                    message, param=f"documents[{missing}].score", hint="score all or none"
                )
        contents = [message.content for message in self.messages]
        texts = [
            part.text for content in contents if not isinstance(content, str) for part in content
        ]
        texts += [content for content in contents if isinstance(content, str)]
        size = sum(map(len, texts)) + sum(
            len(document.text) + len(document.title or "") for document in documents
        )
        if size > MAX_CONTEXT_CHARS:
            message = (
                f"messages and documents hold {size} characters, at most {MAX_CONTEXT_CHARS} are"
                " put together"
            )
            raise InvalidRequestError(
                message, param="documents" if documents else "messages", hint="send fewer"
            )

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters of a chat; without ``max_tokens`` the answer may fill the context."""
        self.check_together()
        most = self.max_tokens
        if self.max_completion_tokens is not None:
            if most is not None and most != self.max_completion_tokens:
                message = "max_tokens and max_completion_tokens differ"
                raise InvalidRequestError(
                    message, param="max_completion_tokens", hint="give only one of them"
                )
            most = self.max_completion_tokens
            if most < 1:
                message = f"max_completion_tokens must be a positive integer, got {most}"
                raise InvalidRequestError(message, param="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        try:
            logprobs = (self.top_logprobs or 0) if self.logprobs else None
            return self.sampling_params(defaults, max_tokens=most, logprobs=logprobs)
        except InvalidRequestError as error:
            if error.param != "logprobs":
                raise
            # The client knows the number under another name.
            message = error.message.replace("logprobs", "top_logprobs", 1)
            raise InvalidRequestError(message, param="top_logprobs") from error


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "suffix": ("",), "best_of": (1,), "response_format": ({"type": "text"},), "use_beam_search": (False,),
        "length_penalty": (1.0, 1), "prompt_embeds": (), "guided_json": (), "guided_regex": (), "guided_choice": (),
        "guided_grammar": (), "structured_outputs": (), "metadata": ({},), "store": (False,),
    }  # fmt: skip

    prompt: (
        str
        | Annotated[Texts, MaxLen(MAX_PROMPTS)]
        | Tokens
        | Annotated[list[Tokens], MaxLen(MAX_PROMPTS), FirstMistake()]
    )
    echo: bool | None = Field(None, description="Return the prompt before the answer.")
    logprobs: int | None = None
    add_special_tokens: bool | None = Field(
        None, description="Encode prompts with the model's BOS; true by default."
    )

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters of one prompt. ``max_tokens=0`` with echo (to score a text) generates
        one to drop.
        """
        self.check_together()
        overrides: dict[str, Any] = {"logprobs": self.logprobs}
        if self.scores_only:
            overrides["max_tokens"] = 1
        if self.echo and self.logprobs is not None:
            if self.stream:
                raise InvalidRequestError("echo with logprobs cannot be streamed", param="echo")
            overrides["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return self.sampling_params(defaults, **overrides)

    @property
    def scores_only(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one for each run of choices."""
        if isinstance(self.prompt, str):
            check_unicode("prompt", [self.prompt])
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequestError("prompt is empty", param="prompt")
        first = self.prompt[0]
        check_unicode("prompt", [text for text in self.prompt if isinstance(text, str)])
        prompts: list[Any] = [self.prompt] if isinstance(first, int) else list(self.prompt)
        if (choices := len(prompts) * (self.n or 1)) > MAX_CHOICES:
            message = (
                f"{len(prompts)} prompts with n={self.n} make {choices} answers, at most"
                f" {MAX_CHOICES} at once"
            )
            raise InvalidRequestError(message, param="n", hint="send several requests")
        return prompts


def check_unicode(param: str, texts: Iterable[str]) -> None:
    """Refuse lone surrogates, which JSON can write but UTF-8 cannot."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = (
                f"{param} holds a lone surrogate at character {error.start}, which is not Unicode"
            )
            hint = "send characters beyond U+FFFF as UTF-8 or as a complete pair of \\u escapes"
            raise InvalidRequestError(message, param=param, hint=hint) from error


def _token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in biases):
        raise InvalidRequestError(
            "logit_bias must map token ids, written as strings, to numbers", param="logit_bias"
        )
    return {int(key): value for key, value in biases.items()}
