"""What all bodies have in common: unknown fields are refused by name, and nonsense is refused at
its first mistake.

Pydantic would describe every mistake, of which a body can hold millions, and only the first is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from twostroke.core.sampling_params import MAX_LOGIT_BIAS
from twostroke.server.limits import LIMITS, MAX_PROMPT_TOKENS, MAX_TOKEN_IDS


class StrictModel(BaseModel):
    """Unknown fields are errors; known OpenAI fields that are not supported are errors unless they
    say nothing.

    Attributes:
        refused: Field name to the values under which it asks for nothing; ``None`` always is one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > len(cls.model_fields) + len(cls.refused):
            # Pydantic would complain of each of a million keys.
            name = next(
                name for name in data if name not in cls.model_fields and name not in cls.refused
            )
            raise PydanticCustomError("unknown_field", "unknown", {"field": ascii(name)[1:-1]})
        if not cls.refused.keys() & data.keys():
            return data
        for name, neutral in cls.refused.items():
            value = data.get(name)
            # Compared with the type, since 1 == True.
            if value is not None and not any(
                type(value) is type(n) and value == n for n in neutral
            ):
                # Not our own error: pydantic knows where in the body this model lies.
                raise PydanticCustomError("unsupported_field", "not supported", {"field": name})
        return {name: value for name, value in data.items() if name not in cls.refused}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The document tells of limits, and of refused fields the values that pass."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, limit in LIMITS.items():
            if name in properties:
                properties[name] |= limit
        for name, neutral in cls.refused.items():
            properties[name] = {
                "enum": [None, *neutral],
                "description": "Not supported: may be there, but say nothing.",
            }
        return schema


class FirstMistake(FailFast):
    """Ends the check of a list: a million wrong items would make a million complaints. Unions need
    it hashable.
    """

    __hash__ = object.__hash__


TokenIds = Annotated[list[int], MaxLen(MAX_TOKEN_IDS), FirstMistake()]
Tokens = Annotated[list[int], MaxLen(MAX_PROMPT_TOKENS), FirstMistake()]
Texts = Annotated[list[str], FirstMistake()]


def few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise PydanticCustomError("too_long", "too long", {"max_length": MAX_LOGIT_BIAS})
    return value
