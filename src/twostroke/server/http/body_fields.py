"""The base of all request objects: what each does with fields that it does not have.

Pydantic would describe every mistake, of which a body can hold millions. Only the first is
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from twostroke.core.errors import InvalidRequestError
from twostroke.server.foreign_fields import (
    ADVISORY,
    COUNTERPARTS,
    Counterpart,
    with_counterparts,
)

# Keys of one object beyond its own fields: a million would take seconds to look at.
MAX_FOREIGN_KEYS = 256
LEAVE_OUT = "leave it out"


class StrictModel(BaseModel):
    """What would change the answer and is not supported is an error; ``null`` never is.

    Attributes:
        refused: Field name to the values under which it asks for nothing.
        instead: Names of those, and of unknown ones, to what to send instead.
        ignored: Field name to the reason why any value of it changes no guarantee.
        ignores_unknown: Whether names that are unknown here are ignored, too.
        is_body: Whether it is a whole body, in which the fields of ``foreign_fields.py`` are known.
        counterparts: Field names of other servers to what they are here, beside those.
        nested: Fields that hold such models, or lists of them.
        limits: Field name to JSON schema keywords, for the API document alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    instead: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Mapping[str, str]] = {}
    ignores_unknown: ClassVar[bool] = False
    is_body: ClassVar[bool] = False
    counterparts: ClassVar[Mapping[str, Counterpart]] = {}
    nested: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    # A slot that most objects leave unset: pydantic sets up a private attribute of every object,
    # which took half of the time of reading a body of many.
    __slots__ = ("_dropped",)

    @model_validator(mode="wrap")
    @classmethod
    def _drop_ignored(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """The one place that drops fields; ``dropped_fields`` names them."""
        if not isinstance(data, dict) or data.keys() <= cls.__pydantic_fields__.keys():
            return validate(data)
        if (taken := cls.taken()).keys() & data.keys():
            data, contradicted = with_counterparts(data, taken)
            if contradicted is not None:
                raise _given_twice(contradicted, taken[contradicted].path)
        own = {name: value for name, value in data.items() if name in cls.model_fields}
        foreign = [name for name in data if name not in own]
        known = cls.refused.keys() | cls.ignorable().keys()
        dropped = []
        for place, name in enumerate(foreign):
            value = data[name]
            if name in cls.refused:
                _check_neutral(name, value, cls.refused[name], cls.instead.get(name, LEAVE_OUT))
            elif place >= MAX_FOREIGN_KEYS or not (
                value is None or name in known or cls.ignores_unknown
            ):
                if (hint := cls.hint_for(name)) is not None:
                    raise PydanticCustomError(
                        "known_elsewhere", "unknown field", {"field": name, "hint": hint}
                    )
                return validate({**own, name: value})  # pydantic refuses it, with its place
            elif value is not None:
                dropped.append(name)
        model = validate(own)
        object.__setattr__(model, "_dropped", tuple(dropped))
        return model

    def __copy__(self) -> Self:
        copied = super().__copy__()
        if (dropped := getattr(self, "_dropped", ())) != ():
            object.__setattr__(copied, "_dropped", dropped)
        return copied

    @classmethod
    def ignorable(cls) -> Mapping[str, str]:
        """All fields that are ignored, with the reasons."""
        own = cls.model_fields.keys() | cls.refused.keys()
        everywhere = ADVISORY.items() if cls.is_body else ()
        return {name: why for name, why in everywhere if name not in own} | dict(cls.ignored)

    @classmethod
    def taken(cls) -> Mapping[str, Counterpart]:
        """All fields of other servers that are taken for one of these."""
        everywhere = {**(COUNTERPARTS if cls.is_body else {}), **cls.counterparts}
        return {
            name: counterpart
            for name, counterpart in everywhere.items()
            if counterpart.path[0] in cls.model_fields and name not in cls.model_fields
        }

    @classmethod
    def hint_for(cls, name: str) -> str | None:
        """What to send for a field that is unknown here, but known on another route."""
        if name in cls.instead:
            return cls.instead[name]
        if cls.is_body and name in COUNTERPARTS:
            ours = ".".join(COUNTERPARTS[name].path)
            return f"leave it out, or use /v1/chat/completions, where it is {ours}"
        return None

    def dropped_fields(self) -> list[str]:
        """Each ignored field once, as a path: ``metadata``, ``messages[].cache_control``."""
        names: dict[str, None] = dict.fromkeys(getattr(self, "_dropped", ()))
        for field in self.nested:
            value = getattr(self, field)
            for model in value if isinstance(value, list) else [value]:
                if isinstance(model, StrictModel):
                    path = f"{field}[]" if isinstance(value, list) else field
                    names |= dict.fromkeys(f"{path}.{name}" for name in model.dropped_fields())
        return list(names)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Adds the limits, the ignored fields, and the values that refused fields may have."""
        schema = handler(core)
        resolved = handler.resolve_ref_schema(schema)
        properties = resolved["properties"]
        for name, limit in cls.limits.items():
            if name in properties:
                properties[name] |= limit
        for name, neutral in cls.refused.items():
            properties[name] = {
                "enum": [None, *neutral],
                "description": "Not supported: may be there, but say nothing.",
            }
        for name, reason in cls.ignorable().items():
            properties[name] = {
                "description": f"Ignored, and named in the header x-ignored-fields: {reason}."
            }
        for name, counterpart in cls.taken().items():
            description = f"Taken for {'.'.join(counterpart.path)}."
            properties[name] = {
                "anyOf": [dict(counterpart.schema), {"type": "null"}],
                "description": description,
            }
        if cls.ignores_unknown:
            resolved.pop("additionalProperties", None)
        return schema


def _check_neutral(name: str, value: Any, neutral: tuple[Any, ...], hint: str) -> None:
    # Compared with the type, since 1 == True.
    if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
        # Not a TwostrokeError: pydantic knows where in the body this model lies.
        context = {"field": name, "hint": hint}
        raise PydanticCustomError("unsupported_field", "not supported", context)


def _given_twice(name: str, path: Sequence[str]) -> PydanticCustomError:
    ours = {"field": name, "other": ".".join(path)}
    return PydanticCustomError("given_twice", "given twice", ours)


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
