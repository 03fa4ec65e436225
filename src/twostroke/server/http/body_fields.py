"""The base of all request objects: unknown fields are refused by name, at the first mistake.

Pydantic would describe every mistake, of which a body can hold millions. Only the first is
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from twostroke.core.errors import InvalidRequestError


class StrictModel(BaseModel):
    """Unknown fields are errors, and so are unsupported ones that ask for something.

    Attributes:
        refused: Field name to the values under which it asks for nothing; ``None`` always is one.
        limits: Field name to JSON schema keywords, for the API document alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > len(cls.model_fields) + len(cls.refused):
            # Pydantic would describe each of a million keys.
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
                # Not a TwostrokeError: pydantic knows where in the body this model lies.
                raise PydanticCustomError("unsupported_field", "not supported", {"field": name})
        return {name: value for name, value in data.items() if name not in cls.refused}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Adds the limits, and the values that refused fields may have."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, limit in cls.limits.items():
            if name in properties:
                properties[name] |= limit
        for name, neutral in cls.refused.items():
            properties[name] = {
                "enum": [None, *neutral],
                "description": "Not supported: may be there, but say nothing.",
            }
        return schema


class FirstMistake(FailFast):
    """Ends the check of a list at its first wrong item, of which there may be a million."""

    __hash__ = object.__hash__  # unions need it


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
