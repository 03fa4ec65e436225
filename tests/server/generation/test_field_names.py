"""Refusals get a dialect's names of fields: in one place, as deep as the field, message and all."""

from __future__ import annotations

import pytest

from twostroke.core.errors import InvalidRequestError, ModelNotFoundError, RequestTooLargeError
from twostroke.server.generation.field_names import FieldNames

NAMES = FieldNames(
    pairs=(("form.json", "text.schema"), ("form", "text"), ("stop", "stop_sequences")),
    placed=lambda param: "input" if param.startswith("messages[") else None,
    too_large_hint="send less",
)


def refused(error: InvalidRequestError, names: FieldNames = NAMES) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught, names.applied():
        raise error
    return caught.value


def test_the_first_pair_that_fits_names_the_field_and_what_lies_within() -> None:
    assert NAMES.of("form.json.a") == "text.schema.a"
    assert NAMES.of("form[0]") == "text[0]" and NAMES.of("former") == "former"
    assert NAMES.of("messages[3].content") == "input"
    error = refused(InvalidRequestError("form.json is bad, at form.json.a", param="form.json"))
    assert (error.param, error.message) == ("text.schema", "text.schema is bad, at text.schema.a")


def test_a_value_that_the_message_shows_stays_as_it_is() -> None:
    error = refused(InvalidRequestError("stop must be short, got ['stop']", param="stop"))
    assert error.message == "stop_sequences must be short, got ['stop']"


def test_what_is_too_large_keeps_its_message_and_gets_the_hint_of_the_dialect() -> None:
    asked = RequestTooLargeError("no room for stop", needed=2, available=1, param="stop")
    error = refused(asked)
    assert isinstance(error, RequestTooLargeError)
    assert (error.param, error.message, error.hint) == (
        *("stop_sequences", "no room for stop"),
        "send less",
    )


def test_errors_that_are_sentences_name_the_field_and_other_kinds_pass() -> None:
    sentences = FieldNames(sentences=True)
    assert refused(InvalidRequestError("no", param="tools"), sentences).message == "tools: no"
    other = ModelNotFoundError("no", param="model")
    assert refused(other, sentences) is other
