"""Tools that are known by their types: clients run them unchanged, servers' own are left out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from anthropic.lib.tools._beta_functions import BetaBuiltinFunctionTool

from tests.server.anthropic.messages_calls import BODY, USER, WEATHER, engine_that_says
from tests.server.dialogues import prompt_of
from tests.server.http_calls import post
from tests.server.running import running_server
from tests.server.scripted import Script, ScriptedEngine
from tests.server.tiny import tiny_engine
from twostroke.server.anthropic.known_tools import known_tool

BASH = {"type": "bash_20250124", "name": "bash"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
UNENFORCED = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
EDITOR = "str_replace_based_edit_tool"
NAMES = {
    "bash_20241022": "bash",
    "bash_20250124": "bash",
    "text_editor_20241022": "str_replace_editor",
    "text_editor_20250124": "str_replace_editor",
    "text_editor_20250429": EDITOR,
    "text_editor_20250728": EDITOR,
    "memory_20250818": "memory",
}
# What the documentation shows of each, and what its clients read.
INPUTS: list[tuple[str, dict[str, Any]]] = [
    ("bash_20250124", {"command": "ls -la"}),
    ("bash_20250124", {"command": "", "restart": True}),
    ("text_editor_20250124", {"command": "view", "path": "/a.py", "view_range": [1, -1]}),
    ("text_editor_20250124", {"command": "undo_edit", "path": "/a.py"}),
    (
        "text_editor_20250124",
        {"command": "insert", "path": "/a.py", "insert_line": 0, "new_str": "x"},
    ),
    (
        "text_editor_20250728",
        {"command": "insert", "path": "/a.py", "insert_line": 0, "insert_text": "x"},
    ),
    ("text_editor_20250728", {"command": "create", "path": "/a.py", "file_text": "x"}),
    (
        "text_editor_20250728",
        {"command": "str_replace", "path": "/a.py", "old_str": "x", "new_str": "y"},
    ),
    (
        "memory_20250818",
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
    ),
    ("memory_20250818", {"command": "delete", "path": "/memories/a"}),
]


def calling(name: str, **arguments: Any) -> Script:
    """A model that calls a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return Script(pieces=(f"<tool_call>{call}</tool_call>",), max_model_len=9000)


@pytest.fixture
def engine() -> ScriptedEngine:
    return engine_that_says("ok", max_model_len=9000)


@pytest.fixture
def api(engine: ScriptedEngine) -> Iterator[anthropic.Anthropic]:
    with (
        running_server(engine) as url,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as api,
    ):
        yield api


@pytest.mark.parametrize(("kind", "values"), INPUTS)
def test_documented_inputs_fit_the_schema(kind: str, values: dict[str, Any]) -> None:
    tool = known_tool(kind)
    assert tool is not None and tool.name == NAMES[kind]
    jsonschema.validate(values, tool.parameters)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "other": 1}, tool.parameters)


@pytest.mark.parametrize("kind", NAMES)
def test_the_template_gets_a_function(
    api: anthropic.Anthropic, engine: ScriptedEngine, kind: str
) -> None:
    """They were refused as tools without an input_schema."""
    tools: Any = [{"type": kind, "name": NAMES[kind]}, WEATHER]
    api.beta.messages.create(model="scripted", max_tokens=5, messages=USER, tools=tools)
    (function, _) = (tool["function"] for tool in tools_in(prompt_of(engine)))
    assert function["name"] == NAMES[kind] and function["description"]
    assert "command" in function["parameters"]["properties"]


def tools_in(prompt: str) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = json.loads(prompt.partition("\n")[0].removeprefix("tools: "))
    return tools


class Shell(BetaBuiltinFunctionTool):
    """A client's own shell, under Anthropic's type."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def to_dict(self) -> Any:
        return BASH

    def call(self, input: Any) -> str:
        self.commands.append(input["command"])
        done = subprocess.run(["sh", "-c", input["command"]], capture_output=True, text=True)
        return done.stdout


def test_a_clients_shell_runs_in_a_loop(api: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script, shell = calling("bash", command="echo two; echo strokes"), Shell()
    runner: Any = api.beta.messages.tool_runner(
        model="scripted", max_tokens=50, tools=[shell], messages=USER
    )
    for message in runner:
        assert message.stop_reason in ("tool_use", "end_turn")
        engine.script = Script(pieces=("done",), max_model_len=9000)
    assert shell.commands == ["echo two; echo strokes"]
    assert "tool: two\nstrokes\n[" in prompt_of(engine)


def test_anthropics_memory_tool_runs_unchanged(
    api: anthropic.Anthropic, engine: ScriptedEngine, tmp_path: Path
) -> None:
    memory = BetaLocalFilesystemMemoryTool(str(tmp_path))
    path = "/memories/facts.txt"
    scripts = [
        calling("memory", command="insert", path=path, insert_line=1, insert_text="Bern\n"),
        calling("memory", command="view", path=path),
        Script(pieces=("done",), max_model_len=9000),
    ]
    engine.script = calling("memory", command="create", path=path, file_text="bears\n")
    runner: Any = api.beta.messages.tool_runner(
        model="scripted", max_tokens=50, tools=[memory], messages=USER
    )
    for _ in runner:
        engine.script = scripts.pop(0)
        if not scripts:
            break
    assert (tmp_path / "memories" / "facts.txt").read_text() == "bears\nBern\n"


@pytest.mark.parametrize("kind", ["bash_20250124", "memory_20250818"])
def test_a_demanded_call_follows_the_schema(kind: str) -> None:
    """A random model on its own would never write one."""
    name, tool = NAMES[kind], known_tool(kind)
    assert tool is not None
    # A form of the answer, not its prompt, is looked at: that is kept short.
    template = "{{ messages[-1].content }}{# <tool_call> #}"
    with (
        tiny_engine(template=template) as engine,
        running_server(engine, served_model_name=("tiny",)) as url,
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as api,
    ):
        for number in range(50):  # one in three ends within its tokens
            fields: dict[str, Any] = {
                "messages": [{"role": "user", "content": f"hi {number}"}],
                "tools": [{"type": kind, "name": name}],
                "tool_choice": {"type": "tool", "name": name},
            }
            message: Any = api.messages.create(model="tiny", max_tokens=240, **fields)
            if message.stop_reason == "tool_use":
                (call,) = message.content
                assert call.name == name
                jsonschema.validate(call.input, tool.parameters)
                return
    pytest.fail("no call ended")


async def test_what_the_editor_shows_is_said(engine: ScriptedEngine) -> None:
    tool = {"type": "text_editor_20250728", "name": EDITOR, "max_characters": 1234}
    await post(engine, "messages", {**BODY, "tools": [tool]})
    (function,) = (tool["function"] for tool in tools_in(prompt_of(engine)))
    assert "1234 characters" in function["description"]


@pytest.mark.parametrize(
    "tool",
    [
        {**SEARCH, "max_uses": 5, "user_location": {"type": "approximate"}},
        {"type": "web_search_20990101", "name": "web_search", "anything": 1},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "web_fetch_20250910", "name": "web_fetch", "citations": {"enabled": True}},
        {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"},
    ],
)
async def test_tools_of_servers_are_left_out_and_named(
    engine: ScriptedEngine, tool: dict[str, Any]
) -> None:
    """Clients list them beside their own; the answer does without."""
    response = await post(engine, "messages", {**BODY, "tools": [tool, WEATHER]})
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-fields"] == f"tools[].{tool['type']}"
    assert [t["function"]["name"] for t in tools_in(prompt_of(engine))] == ["get_weather"]
    alone = await post(engine, "messages", {**BODY, "tools": [tool]})
    assert alone.status_code == 200 and prompt_of(engine).startswith("user: hi")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tools": [SEARCH], "tool_choice": {"type": "any"}},
            "tool_choice demands web_search, which this server cannot run",
        ),
        (
            {"tools": [SEARCH, WEATHER], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice demands web_search",
        ),
        ({"tools": [{**BASH, "name": "shell"}]}, "must have the name bash"),
        ({"tools": [{**BASH, "input_schema": {}}]}, "tools[0]: a tool of the type bash_20250124"),
        ({"tools": [{**BASH, "max_characters": 9}]}, "max_characters is for text_editor_20250728"),
        ({"tools": [{**BASH, "type": "bash_19990101"}]}, "describe it as a tool of your own"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "takes text only"),
        ({"tools": [{"type": "mcp_toolset", "name": "x"}]}, "calls no MCP servers"),
        ({"tools": [{**BASH, "defer_loading": True}]}, "tools[0].defer_loading is not supported"),
        # Places are those of the request, whatever is left out.
        ({"tools": [SEARCH, BASH, BASH]}, "tools[2].name is that of another tool"),
        (
            {
                "tools": [SEARCH, {"name": "a", "input_schema": UNENFORCED, "strict": True}],
                "tool_choice": {"type": "any"},
            },
            "tools[1].input_schema",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused(
    engine: ScriptedEngine, fields: dict[str, Any], message: str
) -> None:
    response = await post(engine, "messages", {**BODY, **fields})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert not engine.submitted


async def test_a_demanded_tool_of_the_client_beside_one_of_a_server(
    engine: ScriptedEngine,
) -> None:
    """``any`` asks for one that can be run, as long as there is one."""
    fields = {"tools": [SEARCH, WEATHER], "tool_choice": {"type": "any"}}
    response = await post(engine, "messages", {**BODY, **fields})
    assert response.status_code == 200, response.text
    assert engine.submitted[0].params.structured_outputs is not None
