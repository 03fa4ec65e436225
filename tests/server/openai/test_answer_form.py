"""Structured output over HTTP: a real engine on a tiny model, real clients, every field."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.machine_speed import slowness
from tests.server.http_calls import USER, post
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.server.options import ServerOptions

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<call=a>", "schema": SCHEMA, "end": "</call>"}],
    "triggers": ["<call="],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny_engine() as engine, running_server(engine, served_model_name=("tiny",)) as url:
        yield url


def answer(url: str, path: str = "chat/completions", **fields: Any) -> str:
    """The text of one answer."""
    prompt: dict[str, Any] = {"messages": USER} if path.startswith("chat") else {"prompt": "the"}
    response = httpx.post(f"{url}/v1/{path}", json={"max_tokens": 120, **prompt, **fields})
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    text: str = choice["message"]["content"] if path.startswith("chat") else choice["text"]
    return text


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
    ],
)
def test_every_way_to_give_a_schema(url: str, path: str, fields: dict[str, Any]) -> None:
    for seed in range(3):
        text = answer(url, path, seed=seed, **fields)
        jsonschema.validate(json.loads(text), SCHEMA)


def test_other_forms(url: str) -> None:
    for name in ("structured_outputs", "guided"):

        def fields(kind: str, value: Any, name: str = name) -> dict[str, Any]:
            return {f"guided_{kind}": value} if name == "guided" else {name: {kind: value}}

        assert answer(url, **fields("choice", ["left", "right"])) in ("left", "right")
        assert answer(url, **fields("regex", "[ab]{3}c")).strip("ab") == "c"
        assert answer(url, **fields("grammar", 'start: "x" "y"+ "z"')).replace("y", "") in (
            "xz",
            "x",
        )
        assert answer(url, **fields("grammar", 'root ::= "1" | "2"')) in ("1", "2")
    text = answer(url, response_format={"type": "json_object"}, max_tokens=3)
    assert text.lstrip().startswith("{")
    assert answer(url, response_format={"type": "text"}, max_tokens=3)


def test_a_structural_tag_leaves_text_free_and_constrains_what_it_triggers(url: str) -> None:
    """The trigger is forced by a bias, since the tiny model would not write it."""
    text = answer(
        url,
        "completions",
        response_format=TAG,
        prompt="the",
        logit_bias={"29": 100},
        max_tokens=40,
    )
    assert text
    form = {"structural_tag": json.dumps(TAG)}
    assert answer(url, structured_outputs=form, max_tokens=5, min_tokens=5, seed=1)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    age: int
    mood: Literal["good", "bad"]


def test_the_official_client_parses_into_its_models(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        seeds = range(4)
        parsed = []
        for seed in seeds:
            completion = api.chat.completions.parse(
                model="tiny", messages=USER, response_format=Person, seed=seed, logit_bias={"26": 5}
            )
            if completion.choices[0].finish_reason == "stop":
                parsed.append(completion.choices[0].message.parsed)
        assert parsed and all(isinstance(person, Person) for person in parsed)


def test_a_stream_concatenates_to_the_same_answer(url: str) -> None:
    fields: dict[str, Any] = {"seed": 3, "structured_outputs": {"json": SCHEMA}}
    whole = answer(url, **fields)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as api:
        chunks: Any = api.chat.completions.create(
            model="tiny",
            messages=USER,
            stream=True,
            seed=3,
            max_tokens=120,
            extra_body={"structured_outputs": fields["structured_outputs"]},
        )
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"guided_json": {"not": {}}}, "guided_json", "'not' is not supported, at #/not"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"if": {}}}}},
            "response_format.json_schema.schema",
            "'if' is not supported, at #/if",
        ),
        (
            {"structured_outputs": {"json": {"properties": {"a": {"format": "zip"}}}}},
            "structured_outputs.json",
            "'zip' is not supported",
        ),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "no answer can satisfy it"),
        ({"guided_json": "{"}, "guided_json", "guided_json is not valid JSON"),
        ({"guided_regex": "("}, "guided_regex", "unclosed group"),
        ({"guided_regex": "\ud800"}, "guided_regex", "cannot be compiled"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "unknown name"),
        ({"guided_choice": []}, "guided_choice", "must be a list"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "got regex and choice",
        ),
        ({"structured_outputs": {"schema": {}}}, "structured_outputs.schema", "unknown field"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "response_format and guided_regex both",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "must be an object",
        ),
        (
            {"response_format": {**TAG, "structures": [{"begin": "x"}]}},
            "response_format.structural_tag.structures[0]",
            "'begin', 'schema' and 'end'",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_named(
    fields: dict[str, Any], param: str, words: str
) -> None:
    for path, prompt in (
        ("chat/completions", {"messages": USER}),
        ("completions", {"prompt": "a"}),
    ):
        engine = ScriptedEngine()
        response = await post(engine, path, {**prompt, **fields})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and words in error["message"], error
        assert not engine.submitted


async def test_a_request_reaches_the_engine_compiled_and_as_text() -> None:
    """So that nothing is left to do on the event loop, or for the engine's first mask."""
    engine = ScriptedEngine()
    assert (await post(engine, "completions", {"prompt": "a", "guided_json": SCHEMA})).is_success
    form = engine.submitted[0].params.structured_outputs
    assert form is not None and isinstance(form.json, str)
    assert len(engine.grammars) == 1


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, Any] = {
    "deep": deep(3000),
    "deep for the recursion of schemas alone": deep(80),
    "a reference to itself": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    | {"$ref": "#/$defs/a"},
    "10 MB of text": {"enum": ["x" * 10_000_000]},
    "10 MB of values": {"enum": list(range(1_500_000))},
    "many properties": {"properties": {f"p{n}": {"type": "string"} for n in range(40_000)}},
    "exponential": {
        "allOf": [
            {"anyOf": [{"properties": {f"a{i}{j}": {"const": 1}}} for j in range(5)]}
            for i in range(12)
        ]
    },
    "doubling": {
        "$defs": {
            f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
            for n in range(40)
        }
        | {"d40": {"type": "object"}},
        "$ref": "#/$defs/d0",
    },
    "an expression of many states": {"type": "string", "pattern": "(a|b)*a(a|b){400}"},
    "repetition of repetitions": {"type": "string", "pattern": "((a{100}){100}){100}"},
    "many alternatives": {
        "anyOf": [{"type": "object", "properties": {f"k{n}": {}}} for n in range(20_000)]
    },
}


def test_hostile_schemas_are_answered_at_once_and_harm_nothing(url: str) -> None:
    """Each within a second, by a 400 or an answer, while /health and another request go on."""
    slowest: dict[str, float] = {}
    done = threading.Event()

    def ask_others() -> int:
        count = 0
        while not done.is_set():
            assert httpx.get(f"{url}/health").status_code == 200
            assert answer(url, "completions", max_tokens=5, ignore_eos=True)
            count += 1
        return count

    with ThreadPoolExecutor(1) as threads:
        others = threads.submit(ask_others)
        try:
            for name, schema in HOSTILE.items():
                body = json_text({"prompt": "a", "max_tokens": 2, "guided_json": schema})
                began = time.monotonic()
                response = httpx.post(f"{url}/v1/completions", content=body, timeout=30)
                slowest[name] = time.monotonic() - began
                expected = (413,) if len(body) > ServerOptions().max_body_size else (200, 400)
                assert response.status_code in expected, (name, response.text)
        finally:
            done.set()  # or the other thread would go on for ever
        assert others.result() >= 1
    late = {name: seconds for name, seconds in slowest.items() if seconds > slowness()}
    assert not late, slowest


def json_text(value: Any) -> str:
    """JSON of any depth: the library's encoder ends at a thousand levels."""
    if isinstance(value, dict) and "guided_json" in value and value["guided_json"] is not None:
        rest = json.dumps({name: item for name, item in value.items() if name != "guided_json"})
        return f'{rest[:-1]}, "guided_json": {nested_text(value["guided_json"])}}}'
    return json.dumps(value)


def nested_text(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except RecursionError:
        return '{"type":"object","properties":{"a":' * 3000 + "{}" + "}}" * 3000
