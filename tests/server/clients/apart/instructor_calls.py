"""instructor in its modes: by tools, by JSON schema, and in pieces as they come."""

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
