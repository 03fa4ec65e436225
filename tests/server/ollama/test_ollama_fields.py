"""Each field and option that Ollama's own client has is served, refused by name, or ignored."""

from __future__ import annotations

import time
from typing import Any

import ollama
import pytest

from tests.server.dialogues import THINKING, prompt_of
from tests.server.ollama.ollama_calls import (
    TEXT,
    USER,
    WEATHER,
    chat,
    engine_that_says,
    lines_of,
    post,
)
from tests.server.running import ROOT
from tests.server.scripted import ScriptedEngine
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.server.http.body_fields import StrictModel
from twostroke.server.http.ignored_header import IGNORED_FIELDS
from twostroke.server.ollama.generation_fields import OllamaChatRequest, OllamaGenerateRequest
from twostroke.server.ollama.message_fields import OllamaMessageFields, chat_messages
from twostroke.server.ollama.option_fields import OptionFields

# What asks for something, and what the engine then gets.
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "temperature": (0.5, {"temperature": 0.5}),
    "top_k": (7, {"top_k": 7}),
    "top_p": (0.5, {"top_p": 0.5}),
    "min_p": (0.25, {"min_p": 0.25}),
    "seed": (5, {"seed": 5}),
    "num_predict": (3, {"max_tokens": 3}),
    "stop": (["x", "y"], {"stop": ("x", "y")}),
    "repeat_penalty": (1.5, {"repetition_penalty": 1.5}),
    "presence_penalty": (1.5, {"presence_penalty": 1.5}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
}
IGNORED_OPTIONS = ["num_ctx", "num_keep", "num_thread", "num_gpu", "main_gpu", "use_mmap", "numa"]
NEUTRAL = {"mirostat": 0, "tfs_z": 1.0, "typical_p": 1, "penalize_newline": True}
REFUSED = {"mirostat": 1, "tfs_z": 0.5, "typical_p": 0.7, "penalize_newline": False}


def params_of(engine: ScriptedEngine) -> SamplingParams:
    return engine.submitted[-1].params


@pytest.mark.parametrize("option", OPTIONS)
async def test_an_option_reaches_the_engine(option: str) -> None:
    engine = engine_that_says()
    value, expected = OPTIONS[option]
    response = await chat(engine, options={option: value})
    assert response.status_code == 200, response.text
    params = params_of(engine)
    assert {name: getattr(params, name) for name in expected} == expected
    assert IGNORED_FIELDS not in response.headers


@pytest.mark.parametrize("option", IGNORED_OPTIONS)
async def test_what_changes_no_guarantee_is_named(option: str) -> None:
    response = await chat(engine_that_says(), options={option: 1})
    assert response.status_code == 200, response.text
    assert response.headers[IGNORED_FIELDS] == f"options.{option}"


async def test_an_option_that_ollama_does_not_know_is_ignored_as_there() -> None:
    response = await chat(engine_that_says(), options={"rope_frequency_base": 1e4})
    assert response.headers[IGNORED_FIELDS] == "options.rope_frequency_base"


async def test_neutral_values_pass_and_others_are_refused() -> None:
    assert (await chat(engine_that_says(), options=NEUTRAL)).status_code == 200
    for option, value in REFUSED.items():
        response = await chat(engine_that_says(), options={option: value})
        assert response.status_code == 400 and f"options.{option}" in response.json()["error"]


@pytest.mark.parametrize("option", [*ollama.Options.model_fields, "min_p"])
async def test_every_option_of_the_client_has_a_place(option: str) -> None:
    """A nonsensical value is refused by the option's name, unless no value means anything."""
    response = await chat(engine_that_says(), options={option: {"no": "value"}})
    if response.status_code == 200:
        assert response.headers[IGNORED_FIELDS] == f"options.{option}"
    else:
        assert response.status_code == 400 and f"options.{option}" in response.json()["error"]
    known = {*OptionFields.model_fields, *OptionFields.ignored, *OptionFields.refused}
    assert option in known


@pytest.mark.parametrize(
    ("request_type", "ours"),
    [
        (ollama._types.ChatRequest, OllamaChatRequest),
        (ollama._types.GenerateRequest, OllamaGenerateRequest),
    ],
)
def test_every_field_of_the_client_has_a_place(request_type: Any, ours: Any) -> None:
    known = {*ours.model_fields, *ours.ignored, *ours.refused}
    assert set(request_type.model_fields) <= known


@pytest.mark.parametrize("limit", [-2, -1, 0])
async def test_no_limit_is_as_much_as_the_context_holds(limit: int) -> None:
    engine = engine_that_says()
    assert (await chat(engine, options={"num_predict": limit, "seed": -1})).status_code == 200
    assert params_of(engine).max_tokens is None


async def test_a_limit_beyond_the_context_fills_it() -> None:
    """Ollama's clients send one limit to all models; the prompt is never cut for it."""
    engine = engine_that_says(max_model_len=60)
    response = await chat(engine, options={"num_predict": 5000})
    assert response.status_code == 200, response.text
    (request,) = engine.submitted
    assert request.params.max_tokens == 60 - len(request.prompt_token_ids)


async def test_whole_numbers_may_have_a_point() -> None:
    engine = engine_that_says()
    response = await chat(engine, options={"num_predict": 3.0, "top_k": 40.0})
    assert response.status_code == 200, response.text
    assert (params_of(engine).max_tokens, params_of(engine).top_k) == (3, 40)
    assert (await chat(engine, options={"top_k": 40.5})).status_code == 400


async def test_the_window_of_penalties() -> None:
    """It is all of the text here: a window that would change the answer is refused."""
    engine = engine_that_says()
    penalty = {"repeat_penalty": 1.5}
    for options, status in (
        ({**penalty, "repeat_last_n": -1}, 200),
        ({**penalty, "repeat_last_n": 0}, 200),
        ({**penalty, "repeat_last_n": 64}, 400),
        ({"repeat_last_n": 64, "repeat_penalty": 1.0}, 200),
        ({"repeat_last_n": 64, "presence_penalty": 1}, 400),
    ):
        response = await chat(engine, options=options)
        assert response.status_code == status, (options, response.text)
    await chat(engine, options={**penalty, "presence_penalty": 1, "repeat_last_n": 0})
    params = params_of(engine)
    assert (params.repetition_penalty, params.presence_penalty) == (1.0, 0.0)
    named = await chat(engine, options={"repeat_last_n": 64})
    assert named.headers[IGNORED_FIELDS] == "options.repeat_last_n"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ("", None),
        ("json", {"json_object": True}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, "schema"),
    ],
)
@pytest.mark.parametrize("path", ["chat", "generate", "raw"])
async def test_the_form_of_the_answer(form: Any, expected: Any, path: str) -> None:
    engine = engine_that_says()
    body: dict[str, Any] = {"prompt": "hi", "raw": path == "raw"} if path != "chat" else {}
    body |= {"messages": USER} if path == "chat" else {}
    route = "chat" if path == "chat" else "generate"
    response = await post(engine, route, {**body, "stream": False, "format": form})
    assert response.status_code == 200, response.text
    wanted = params_of(engine).structured_outputs
    if expected is None:
        assert wanted is None
    elif expected == "schema":
        assert isinstance(wanted, StructuredOutputsParams) and wanted.json is not None
    else:
        assert isinstance(wanted, StructuredOutputsParams) and wanted.json_object


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"format": {"type": "nonsense"}}, "format"),
        ({"format": "xml"}, "format"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"stop": [""]}}, "options.stop"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"shift": True}, "shift"),
        ({"think": "enormously"}, "think"),
        ({"think": True}, "does not support thinking"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}, "images"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x", "tool_name": "a b"}]}, "tool_name"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
async def test_what_is_refused_names_its_field(fields: dict[str, Any], named: str) -> None:
    response = await chat(engine_that_says(), **fields)
    assert response.status_code == 400
    assert response.json().keys() == {"error"} and named in response.json()["error"]


@pytest.mark.parametrize("field", ["suffix", "template", "images", "width"])
async def test_what_generate_refuses(field: str) -> None:
    value: Any = {"images": ["aa"], "width": 5}.get(field, "x")
    empty: Any = {"images": [], "width": 0}.get(field, "")
    engine = engine_that_says()
    response = await post(engine, "generate", {"prompt": "hi", field: value})
    assert response.status_code == 400 and field in response.json()["error"]
    body = {"prompt": "hi", field: empty, "stream": False}
    assert (await post(engine, "generate", body)).status_code == 200


async def test_a_prompt_with_a_system_prompt_is_a_chat() -> None:
    engine = engine_that_says()
    body = {"prompt": "hi", "system": "be brief", "stream": False, "keep_alive": "5m"}
    response = await post(engine, "generate", body)
    assert response.json()["response"] == TEXT
    assert response.headers[IGNORED_FIELDS] == "keep_alive"
    assert prompt_of(engine) == "system: be brief|\nuser: hi|\nassistant: "


async def test_a_raw_prompt_is_the_models_input() -> None:
    engine = engine_that_says()
    response = await post(engine, "generate", {"prompt": "user: x", "raw": True, "stream": False})
    assert prompt_of(engine) == "user: x" and "context" not in response.json()
    for field, value in (("system", "x"), ("context", [5]), ("truncate", True), ("think", True)):
        body = {"prompt": "x", "raw": True, field: value}
        assert (await post(engine, "generate", body)).status_code == 400


async def test_a_context_goes_on_with_the_conversation() -> None:
    engine = engine_that_says()
    first = (await post(engine, "generate", {"prompt": "hi", "stream": False})).json()
    before = engine.submitted[-1].prompt_token_ids
    assert first["context"][: len(before)] == before
    assert len(first["context"]) == len(before) + first["eval_count"]
    body = {"prompt": "more", "context": first["context"]}
    *_, last = lines_of(await post(engine, "generate", body))
    prompt = engine.submitted[-1].prompt_token_ids
    assert prompt[: len(first["context"])] == first["context"] and len(prompt) > len(before)
    assert last["context"][: len(prompt)] == prompt
    refused = await post(engine, "generate", {"prompt": "hi", "context": [10**6]})
    assert refused.status_code == 400 and "context" in refused.json()["error"]


async def test_messages_become_turns() -> None:
    """Calls have ids and results name theirs, also where the client sends neither."""
    engine = engine_that_says()
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "weather?", "images": [], "mood": "curious"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "I look",
            "tool_calls": [
                {"function": {"name": "get_weather", "arguments": {"city": "Bern"}}},
                {"function": {"name": "other", "arguments": {}}},
                {"id": "own1", "function": {"name": "get_weather", "arguments": {"city": "Ulm"}}},
            ],
        },
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
        {"role": "tool", "content": "sun", "tool_name": "get_weather"},
        {"role": "tool", "content": "?"},
    ]
    response = await chat(engine, messages=turns, tools=[WEATHER])
    assert response.status_code == 200, response.text
    assert prompt_of(engine).endswith(
        "system: be brief|\nuser: weather?|\n"
        "assistant: (I look)[call00001 get_weather Bern][call00002 other ]"
        "[own1 get_weather Ulm]|\n"
        "tool: rain[call00001 get_weather]|\ntool: sun[own1 get_weather]|\n"
        "tool: ?[call00002 other]|\nassistant: "
    )
    assert response.headers[IGNORED_FIELDS] == "messages[].mood"


async def test_thoughts_come_apart_or_not_at_all() -> None:
    engine = engine_that_says("Well", ".\n</think>\n4", "2", template=THINKING)
    shown = (await chat(engine)).json()["message"]
    assert (shown["thinking"], shown["content"]) == ("Well.", "42")
    assert prompt_of(engine).endswith("<think>\n")
    assert (await chat(engine, think=True)).json()["message"] == shown
    level = await chat(engine, think="low")
    assert level.json()["message"] == shown and level.headers[IGNORED_FIELDS] == "think"
    hidden = await chat(engine_that_says("42", template=THINKING), think=False)
    assert hidden.json()["message"] == {"role": "assistant", "content": "42"}
    lines = lines_of(await chat(engine, stream=True))
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Well."
    assert "".join(line["message"]["content"] for line in lines) == "42"


async def test_think_false_reaches_the_template() -> None:
    engine = engine_that_says("42", template=THINKING)
    await chat(engine, think=False)
    assert prompt_of(engine).endswith("<think></think>")


async def test_an_effort_reaches_templates_that_read_it() -> None:
    template = THINKING + "{{ reasoning_effort }}"
    engine = engine_that_says("x</think>42", template=template)
    for think, effort in (("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "high")):
        response = await chat(engine, think=think)
        assert IGNORED_FIELDS not in response.headers
        assert prompt_of(engine).endswith(effort)


async def test_ids_that_come_with_results_alone_are_those_of_the_calls() -> None:
    """So LiteLLM sends them."""
    engine = engine_that_says()
    calls = [{"function": {"name": "get_weather", "arguments": {"city": c}}} for c in ("A", "B")]
    turns: list[dict[str, Any]] = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "first"},
        {"role": "tool", "content": "sun", "tool_call_id": "second"},
        {"role": "tool", "content": "nothing asked", "tool_call_id": "third"},
    ]
    response = await chat(engine, messages=turns, tools=[WEATHER])
    assert response.status_code == 200, response.text
    assert prompt_of(engine).endswith(
        "assistant: [first get_weather A][second get_weather B]|\n"
        "tool: rain[first get_weather]|\ntool: sun[second get_weather]|\n"
        "tool: nothing asked[third ]|\nassistant: "
    )


async def test_many_calls_and_results_cost_what_they_are_long() -> None:
    """The results of as many calls as a body may hold are matched in one pass."""
    call = {"function": {"name": "get_weather", "arguments": {}}}
    calls = {"role": "assistant", "tool_calls": [call] * 128}
    turns = [calls] * 100 + [{"role": "tool", "content": "", "tool_call_id": "x"}] * 8000
    messages = [OllamaMessageFields.model_validate(turn) for turn in turns]
    began = time.perf_counter()
    assert len(chat_messages(messages)) == 8100
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("fields", [OllamaChatRequest, OllamaGenerateRequest, OptionFields])
def test_the_reference_names_every_field(fields: type[StrictModel]) -> None:
    text = (ROOT / "docs" / "reference" / "ollama-api.md").read_text(encoding="utf-8")
    names = {*fields.model_fields, *fields.ignored, *fields.refused} - {"options"}
    assert not [name for name in sorted(names) if f"`{name}`" not in text]
