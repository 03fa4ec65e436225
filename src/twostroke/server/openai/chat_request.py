"""What ``POST /v1/chat/completions`` takes: the request object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import Field, model_validator

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.http.body_fields import FirstMistake
from twostroke.server.openai.chat_messages import Messages
from twostroke.server.openai.field_limits import MAX_DOCUMENTS, OpenAIFields
from twostroke.server.openai.generation_fields import GenerationFields
from twostroke.text.context_material import DocumentOrder
from twostroke.text.context_report import Strategy


class DocumentFields(OpenAIFields):
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


class ContextFields(OpenAIFields):
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
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "metadata": ({},),
        "web_search_options": (),
        "verbosity": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "moderation": (),
        "best_of": (1,),
        "echo": (False,),
        "use_beam_search": (False,),
        "length_penalty": (1.0, 1),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structured_outputs": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "mm_processor_kwargs": (),
    }

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

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters of a chat; without ``max_tokens`` the answer may fill the context."""
        self.check_combinations()
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            if max_tokens is not None and max_tokens != self.max_completion_tokens:
                message = "max_tokens and max_completion_tokens differ"
                raise InvalidRequestError(
                    message, param="max_completion_tokens", hint="give only one of them"
                )
            max_tokens = self.max_completion_tokens
            if max_tokens < 1:
                message = f"max_completion_tokens must be a positive integer, got {max_tokens}"
                raise InvalidRequestError(message, param="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        try:
            logprobs = (self.top_logprobs or 0) if self.logprobs else None
            return self.sampling_params(defaults, max_tokens=max_tokens, logprobs=logprobs)
        except InvalidRequestError as error:
            if error.param != "logprobs":
                raise
            # The client knows the number under another name.
            message = error.message.replace("logprobs", "top_logprobs", 1)
            raise InvalidRequestError(message, param="top_logprobs") from error

    def in_terms_of_chat(self, error: InvalidRequestError) -> InvalidRequestError:
        """The engine's refusal, with the names that this request has for prompt and limits."""
        names = {"prompt": "messages"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        if self.top_logprobs is not None:
            names["logprobs"] = "top_logprobs"
        param = names.get(error.param or "", error.param)
        if isinstance(error, RequestTooLargeError):
            return RequestTooLargeError(
                error.message,
                needed=error.needed,
                available=error.available,
                param=param,
                hint=error.hint,
            )
        return InvalidRequestError(error.message, param=param, hint=error.hint)
