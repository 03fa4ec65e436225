"""The form of the text, on a real engine: what ends by itself is of the schema, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.server.openai.test_answer_form import SCHEMA, Person
from tests.server.running import running_server
from tests.server.tiny import tiny_engine

FORM: Any = {"type": "json_schema", "name": "age", "schema": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    for seed in range(3):
        fields: Any = {
            "model": "tiny",
            "input": "x",
            "text": {"format": FORM},
            "extra_body": {"seed": seed},
        }
        whole = client.responses.create(**fields)
        assert whole.status == "completed"
        jsonschema.validate(json.loads(whole.output_text), SCHEMA)
        assert whole.to_dict()["text"] == {"format": FORM}
        with client.responses.stream(**fields) as stream:
            assert stream.get_final_response().output_text == whole.output_text
        assert client.responses.retrieve(whole.id).to_dict()["text"] == {"format": FORM}


def test_the_client_parses_into_its_models(client: openai.OpenAI) -> None:
    parsed = []
    for seed in range(4):
        try:
            response = client.responses.parse(
                model="tiny",
                input="x",
                text_format=Person,
                temperature=0.2,
                extra_body={"seed": seed},
                max_output_tokens=100,
            )
        except ValueError:  # cut off, which the client cannot parse
            continue
        parsed.append(response.output_parsed)
    assert parsed and all(isinstance(person, Person) for person in parsed)


def test_a_schema_that_cannot_be_enforced_is_named(client: openai.OpenAI) -> None:
    schemas: list[dict[str, Any]] = [{"if": {}}, {"type": "vase"}]
    for schema in schemas:
        form: Any = {"type": "json_schema", "name": "x", "schema": schema}
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="tiny", input="x", text={"format": form})
        assert (caught.value.param or "").startswith("text.format.schema")
        assert "response_format" not in caught.value.message


def test_any_json_object(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny", input="x", text={"format": {"type": "json_object"}}, max_output_tokens=4
    )
    assert response.output_text.lstrip().startswith("{")
