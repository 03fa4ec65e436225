"""instructor in its modes: by tools, by JSON schema, in pieces as they come; and a tool loop."""

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

PILOT, AGENT = sys.argv[1:3]
QUESTION = [{"role": "user", "content": "Name a GPU."}]


class Gpu(BaseModel):
    """A device."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["A100", "H100"]


def client(url: str, mode: instructor.Mode) -> instructor.Instructor:
    plain = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    return instructor.from_openai(plain, mode=mode)


for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
    fields = {"model": "pilot", "messages": QUESTION, "max_tokens": 80, "max_retries": 1}
    if mode is instructor.Mode.JSON:
        # Any object would do there, so the schema goes along as well.
        fields["extra_body"] = {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "gpu", "schema": Gpu.model_json_schema()},
            }
        }
    here = client(PILOT, mode)
    assert isinstance(here.chat.completions.create(response_model=Gpu, **fields), Gpu)

here = client(PILOT, instructor.Mode.JSON_SCHEMA)
pieces = list(
    here.chat.completions.create_partial(
        response_model=Gpu, model="pilot", messages=QUESTION, max_tokens=80
    )
)
assert pieces[-1].name in ("A100", "H100"), pieces


class get_weather(BaseModel):
    """The weather of a city."""

    city: str


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
    there = client(AGENT, mode)
    answer = there.chat.completions.create(
        response_model=get_weather, model="scripted", messages=QUESTION, max_retries=1
    )
    assert answer.city == "Bern"


class Report(BaseModel):
    """What the weather is."""

    rain: bool


def a_tool_loop() -> None:
    """A call, its result, and an answer that has to be asked for again: it was no boolean."""
    there = client(AGENT, instructor.Mode.TOOLS)
    messages = [{"role": "user", "content": "Does it rain in Bern?"}]
    weather, completion = there.chat.completions.create_with_completion(
        response_model=get_weather, model="scripted", messages=messages, max_retries=1
    )
    message = completion.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "it rains"}
    messages += [message.model_dump(exclude_unset=True), result]
    report = there.chat.completions.create(
        response_model=Report, model="scripted", messages=messages, max_retries=2
    )
    assert weather.city == "Bern" and report.rain is True


a_tool_loop()
