"""What ``POST /v1/completions`` takes: the request object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.server.http.body_fields import FirstMistake, check_unicode
from twostroke.server.openai.field_limits import (
    MAX_CHOICES,
    MAX_PROMPTS,
    PromptTokens,
    Texts,
)
from twostroke.server.openai.generation_fields import GenerationFields


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "suffix": ("",),
        "use_beam_search": (False,),
        "prompt_embeds": (),
    }
    instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("chat_template_kwargs", "enable_thinking", "reasoning_effort"),
        "use /v1/chat/completions: a plain prompt has no chat template that reads it",
    )
    nested: ClassVar[tuple[str, ...]] = ("stream_options",)

    prompt: (
        str
        | Annotated[Texts, MaxLen(MAX_PROMPTS)]
        | PromptTokens
        | Annotated[list[PromptTokens], MaxLen(MAX_PROMPTS), FirstMistake()]
    )
    echo: bool | None = Field(None, description="Return the prompt before the answer.")
    logprobs: int | None = None
    add_special_tokens: bool | None = Field(
        None, description="Encode prompts with the model's BOS; true by default."
    )

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Sampling parameters of each prompt."""
        self.check_combinations()
        overrides: dict[str, Any] = {"logprobs": self.logprobs}
        if self.echo and self.logprobs is not None:
            overrides["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return self.sampling_params(defaults, **overrides)

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
