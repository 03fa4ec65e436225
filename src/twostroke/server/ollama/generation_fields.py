"""What ``POST /api/chat`` and ``POST /api/generate`` take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from twostroke.core.sampling_params import MAX_LOGPROBS
from twostroke.server.ollama.message_fields import Messages
from twostroke.server.ollama.option_fields import LIMITS, OllamaFields, OptionFields
from twostroke.server.openai.field_limits import PromptTokens
from twostroke.server.openai.tools.request_tools import Tools

KEEP_ALIVE = {"keep_alive": "the model stays loaded as long as the server runs"}
MODEL = "A name that /api/tags lists, with its tag or without; by default the only one."


class OllamaGenerationFields(OllamaFields):
    """The fields that both share."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = KEEP_ALIVE
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "shift": (False,),
        "_debug_render_only": (False,),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "enable_thinking": "send think",
        "json_schema": "send format",
        "random_seed": "send options.seed",
        "repeat_penalty": "send options.repeat_penalty",
    }
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **LIMITS,
        "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    }

    model: str | None = Field(None, description=MODEL)
    stream: bool | None = Field(
        None, description="True by default: the answer comes as lines of JSON."
    )
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description="The form of the answer: any JSON object, or a JSON schema."
    )
    options: OptionFields | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="By default the chat template decides. Of models that think."
    )
    truncate: bool | None = Field(
        None,
        description=(
            "True: the oldest turns go where the conversation does not fit. By default it is an"
            " error then."
        ),
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="Only with logprobs.")

    @property
    def streamed(self) -> bool:
        return self.stream is not False


class OllamaChatRequest(OllamaGenerationFields):
    """Body of ``POST /api/chat``."""

    nested: ClassVar[tuple[str, ...]] = ("messages", "tools")

    messages: Messages | None = Field(
        None, description="Turns; without any the answer only says that the model is there."
    )
    tools: Tools | None = Field(None, description="Functions that the answer may call.")


class OllamaGenerateRequest(OllamaGenerationFields):
    """Body of ``POST /api/generate``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OllamaGenerationFields.refused,
        "suffix": ("",),
        "template": ("",),
        "images": ([],),
        "width": (0,),
        "height": (0,),
        "steps": (0,),
    }

    prompt: str | None = Field(
        None, description="Without one the answer only says that the model is there."
    )
    system: str | None = Field(None, description="The system prompt.")
    raw: bool | None = Field(
        None, description="The prompt is the model's input as it is, without the chat template."
    )
    context: PromptTokens | None = Field(
        None, description="The context of the answer before: this prompt goes on after it."
    )
