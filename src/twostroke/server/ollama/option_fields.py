"""The field ``options`` of Ollama's requests, and what each option is in a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import (
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)
from twostroke.server.http.body_fields import FirstMistake, StrictModel

MIN_PREDICT = -2  # both that and -1 mean: until the model or its context ends
_LOADING = "it is about loading a model, which has happened"
_NEVER_SHIFTED = "the context is never shifted"
_MIROSTAT = "mirostat is not used"
# Of the chat request, by this API's names, where the two differ.
CHAT_NAMES: Mapping[str, str] = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}
_PENALTIES: Mapping[str, float] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"minimum": 0, "maximum": 100},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repeat_penalty": {"minimum": MIN_REPETITION_PENALTY, "maximum": 100},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "repeat_last_n": {"minimum": -1},
    "num_predict": {"minimum": MIN_PREDICT},
    "stop": {
        "maxItems": MAX_STOP_STRINGS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_LENGTH},
    },
}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]  # clients write 40.0, and Ollama reads that


class OllamaFields(StrictModel):
    """The base of the request objects of this API."""

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = LIMITS

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Says that a null of any name is taken, which no required field hides here."""
        schema = super().__get_pydantic_json_schema__(core, handler)
        resolved = handler.resolve_ref_schema(schema)
        if resolved.get("additionalProperties") is False:
            resolved["additionalProperties"] = {"type": "null"}
        return schema


class OptionFields(OllamaFields):
    """How tokens are drawn and when the answer ends. Others are ignored, as Ollama does."""

    ignores_unknown: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        "num_ctx": "the context is the server's (--max-model-len), and what does not fit fails",
        "num_keep": _NEVER_SHIFTED,
        "mirostat_tau": _MIROSTAT,
        "mirostat_eta": _MIROSTAT,
        **dict.fromkeys(
            (
                "num_batch",
                "num_gpu",
                "main_gpu",
                "num_thread",
                "numa",
                "low_vram",
                "f16_kv",
                "use_mmap",
                "use_mlock",
                "logits_all",
                "embedding_only",
            ),
            _LOADING,
        ),
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "mirostat": (0, 0.0),
        "tfs_z": (1, 1.0),
        "typical_p": (1, 1.0),
        "penalize_newline": (True,),
        "vocab_only": (False,),
    }

    temperature: float | None = Field(None, description="0 is greedy; by default the model's own.")
    top_k: Whole | None = Field(None, description="0 or -1 keeps all.")
    top_p: float | None = None
    min_p: float | None = None
    seed: Whole | None = Field(None, description="-1: another each time.")
    num_predict: Whole | None = Field(
        None,
        description=(
            "Most tokens of the answer; 0 and below, the default: until the model ends it or its"
            " context is full."
        ),
    )
    stop: str | Annotated[list[str], MaxLen(MAX_STOP_STRINGS), FirstMistake()] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: Whole | None = Field(
        None,
        description=(
            "-1: penalties count all of the text, as by default here; 0 switches them off. Another"
            " number is refused where a penalty is on."
        ),
    )

    def chat_fields(self, defaults: Mapping[str, float]) -> tuple[dict[str, Any], list[str]]:
        """The fields of a chat request, and which options change nothing.

        Args:
            defaults: The model's own.

        Raises:
            InvalidRequestError: An option would change the answer in a way that is not supported.
        """
        fields = {
            CHAT_NAMES.get(name, name): value
            for name in type(self).model_fields
            if name != "repeat_last_n" and (value := getattr(self, name)) is not None
        }
        if (seed := fields.get("seed")) is not None and seed < 0:
            del fields["seed"]
        if (limit := fields.get("max_tokens")) is not None and limit <= 0:
            if limit < MIN_PREDICT:
                raise InvalidRequestError(
                    f"options.num_predict must be {MIN_PREDICT} or more, got {limit}",
                    param="options.num_predict",
                )
            del fields["max_tokens"]
        ignored = [f"options.{name}" for name in self.dropped_fields()]
        window = self.repeat_last_n
        if window == 0:
            # What is out of range is refused, though it has no effect.
            SamplingParams(**{name: fields[name] for name in _PENALTIES if name in fields})
            fields |= _PENALTIES
        elif window not in (None, -1):
            in_force = {**defaults, **fields}
            if any(in_force.get(name, off) != off for name, off in _PENALTIES.items()):
                raise InvalidRequestError(
                    "options.repeat_last_n: penalties count all of the text here",
                    param="options.repeat_last_n",
                    hint="leave it out, or send -1, which says so, or 0, which switches them off",
                )
            ignored.append("options.repeat_last_n")
        return fields, ignored
