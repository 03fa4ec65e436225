"""The form of an answer, as clients write it: OpenAI's ``response_format``, and vLLM's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from typing_extensions import TypedDict

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import PARAM, StructuredOutputsParams
from twostroke.server.calls.form import compile_form
from twostroke.server.foreign_fields import Counterpart
from twostroke.server.generation.field_names import FieldNames
from twostroke.server.openai.field_limits import OpenAIFields
from twostroke.server.state.served_model import ServedModel

SCHEMA = "response_format.json_schema"
CLOSING_SWITCH = "disable_additional_properties"
# Each field that asks for a form, and what it says in the terms of the engine.
AskedForms = Mapping[str, dict[str, Any]]


class ResponseFormatFields(OpenAIFields):
    """``response_format``: plain text, any JSON object, or JSON by a schema."""

    # llama.cpp's clients leave the wrapping out, also under json_object.
    counterparts: ClassVar[Mapping[str, Counterpart]] = {
        "schema": Counterpart(("json_schema", "schema"), {"type": "object"})
    }

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputsFields(TypedDict, total=False):
    """``structured_outputs``: one of the first six; vLLM's names and meanings.

    Not a model like the others: these have a method called ``json``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    json: str | dict[str, Any] | None
    regex: str | None
    choice: list[str] | None
    grammar: str | None
    json_object: bool | None
    structural_tag: str | dict[str, Any] | None
    disable_any_whitespace: bool | None
    disable_additional_properties: bool | None
    whitespace_pattern: str | None


def answer_form(asked: AskedForms) -> StructuredOutputsParams | None:
    """The form that a request asks for, if it does.

    Raises:
        InvalidRequestError: It asks in two ways, or in none that makes sense.
    """
    if len(asked) > 1:
        first, second = list(asked)[:2]
        message = f"{first} and {second} both say what form the answer has"
        raise InvalidRequestError(message, param=second, hint="give one of them")
    for values in asked.values():
        with form_names(asked).applied():
            return StructuredOutputsParams(**values)
    return None


def form_names(asked: AskedForms) -> FieldNames:
    """What a request calls the form that it asks for: by the field that asks."""
    field = next(iter(asked), PARAM)
    if field == "response_format":
        return FieldNames(pairs=((f"{PARAM}.json", f"{SCHEMA}.schema"), (PARAM, field)))
    return FieldNames(pairs=((f"{PARAM}.{field.removeprefix('guided_')}", field), (PARAM, field)))


async def compile_answer_form(
    model: ServedModel, asked: AskedForms, params: SamplingParams, tenant: str
) -> SamplingParams:
    """``compile_form``, with the names of the field that asks for it."""
    with form_names(asked).applied():
        return await compile_form(model, params, tenant)


def of_response_format(fields: ResponseFormatFields) -> dict[str, Any]:
    """What ``response_format`` says in the terms of the engine."""
    match fields.type:
        case "json_object" if fields.json_schema is None:
            return {"json_object": True}
        case "json_object" | "json_schema":
            return {"json": _schema_of(fields.json_schema)}
        case _:
            names = ("structures", "triggers", "format")
            given = {name: getattr(fields, name) for name in names}
            return {"structural_tag": {n: value for n, value in given.items() if value is not None}}


def _schema_of(json_schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema in OpenAI's wrapping. It is enforced with ``strict`` and without."""
    if json_schema is None:
        raise InvalidRequestError(f"{SCHEMA} is missing", param=SCHEMA)
    if unknown := json_schema.keys() - {"name", "description", "schema", "strict"}:
        param = f"{SCHEMA}.{ascii(min(unknown))[1:-1][:100]}"
        raise InvalidRequestError(f"unknown field {param!r}", param=param)
    if json_schema.get("strict") not in (None, True, False):
        raise InvalidRequestError(
            f"{SCHEMA}.strict must be true or false", param=f"{SCHEMA}.strict"
        )
    schema = json_schema.get("schema")
    if not isinstance(schema, dict):
        param = f"{SCHEMA}.schema"
        raise InvalidRequestError(f"{param} must be an object, a JSON schema", param=param)
    return schema
