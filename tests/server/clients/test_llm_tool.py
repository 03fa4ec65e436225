"""simonw's ``llm``: a model of a server that is listed in ``extra-openai-models.yaml``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.server.clients.conftest import TurnsEngine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    yield tmp_path


def declare(folder: Path, url: str, name: str, **fields: Any) -> None:
    model = {"model_id": "here", "model_name": name, "api_base": url, **fields}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))


def run(*arguments: str) -> str:
    from llm.cli import cli

    result = CliRunner().invoke(cli, ["prompt", "-m", "here", *arguments])
    assert result.exit_code == 0, result.output
    return str(result.output)


@pytest.mark.parametrize("flags", [(), ("--no-stream",)])
def test_a_prompt(folder: Path, pilot_url: str, flags: tuple[str, ...]) -> None:
    declare(folder, pilot_url, "pilot")
    options = ("-o", "max_tokens", "40", "-o", "temperature", "0", "-s", "Be brief.")
    assert len(run("What is the KV cache?", *options, *flags)) > 20


def test_a_schema(folder: Path, pilot_url: str) -> None:
    declare(folder, pilot_url, "pilot", supports_schema=True)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    closed = json.dumps({**schema, "additionalProperties": False})
    text = run("Name a GPU.", "--schema", closed, "-o", "max_tokens", "60")
    assert json.loads(text)["ok"] in (True, False)


def test_a_loop_with_a_tool(folder: Path, agent: TurnsEngine, agent_url: str) -> None:
    declare(folder, agent_url, "scripted", supports_tools=True)
    tool = "def get_weather(city: str) -> str:\n    return f'rain in {city}'\n"
    assert run("Does it rain in Bern?", "--functions", tool).strip() == "It rains in Bern."
    assert "tool: rain in Bern" in agent.prompt(1)


def test_a_conversation_goes_on(folder: Path, pilot_url: str) -> None:
    declare(folder, pilot_url, "pilot")
    run("What is the KV cache?", "-o", "max_tokens", "20")
    assert run("-c", "And why?", "-o", "max_tokens", "20")
