"""Codex CLI and Claude Code as users start them: each calls a tool, sees its result and answers.

``make clients`` installs them where npm is there; what they sent is in ``wire.jsonl``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.server.clients.conftest import TurnsEngine
from tests.server.clients.test_apart import HERE, PYTHON
from tests.server.openai.tools.test_tools import HERMES
from tests.server.running import running_server
from tests.server.scripted import Script

PROGRAMS = PYTHON.parents[1] / "npm" / "node_modules" / ".bin"
CODEX, CLAUDE = PROGRAMS / "codex", PROGRAMS / "claude"
SECRET = "Bern 4711"
CONFIG = """\
model = "scripted"
model_provider = "here"

[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[mcp_servers.weather]
command = {python}
args = [{script}]
"""


def calling(name: str, **arguments: str) -> tuple[str, ...]:
    """What a model writes to call a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return ("<tool_call>\n", call, "\n</tool_call>")


@pytest.fixture
def agent() -> TurnsEngine:
    """A context that holds these clients' prompts; the first turn is the test's."""
    answer = ("It is all ", "as you said.")
    return TurnsEngine(Script(max_model_len=400_000), template=HERMES, turns=[answer, answer])


@pytest.fixture
def url(agent: TurnsEngine) -> Iterator[str]:
    with running_server(agent) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the client works."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text(f"{SECRET}\n")
    return folder


def run(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """Its standard output; the home is a fresh one, so that nothing of a user's is read."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    ended = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


def run_codex(url: str, folder: Path) -> str:
    home = folder.parent / "codex"
    home.mkdir()
    script = json.dumps(str(HERE / "weather_mcp.py"))
    config = CONFIG.format(url=url, python=json.dumps(sys.executable), script=script)
    (home / "config.toml").write_text(config)
    command: list[str | Path] = [CODEX, "exec", "--json", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", "What is in note.txt?"]
    return run(command, folder, CODEX_HOME=str(home))


@pytest.mark.skipif(not CODEX.exists(), reason="make clients installs it")
def test_codex_runs_a_command(agent: TurnsEngine, url: str, folder: Path) -> None:
    agent.turns[0] = calling("exec_command", cmd="cat note.txt")
    events = [json.loads(line) for line in run_codex(url, folder).splitlines()]
    said = [event["item"] for event in events if event["type"] == "item.completed"]
    assert said[-1] == {
        "id": said[-1]["id"],
        "type": "agent_message",
        "text": "".join(agent.turns[1]),
    }
    assert SECRET in agent.prompt(1)


@pytest.mark.skipif(not CODEX.exists(), reason="make clients installs it")
def test_codex_calls_a_tool_of_a_namespace(agent: TurnsEngine, url: str, folder: Path) -> None:
    """The model calls it by a joined name, the client finds it by both names apart."""
    agent.turns[0] = calling("mcp__weather__get_weather", city="Bern")
    assert '"result":{"content":[{"type":"text","text":"It rains in Bern."}]' in run_codex(
        url, folder
    )
    assert "[mcp__weather__get_weather Bern]" in agent.prompt(1)
    assert "It rains in Bern." in agent.prompt(1)


@pytest.mark.skipif(not CLAUDE.exists(), reason="make clients installs it")
def test_claude_code_runs_a_command(agent: TurnsEngine, url: str, folder: Path) -> None:
    agent.turns[0] = calling("Bash", command="cat note.txt", description="Look at it")
    command: list[str | Path] = [CLAUDE, "-p", "What is in note.txt?", "--model", "scripted"]
    command += ["--allowedTools", "Bash", "--output-format", "json"]
    result = json.loads(
        run(
            command,
            folder,
            ANTHROPIC_BASE_URL=url,
            ANTHROPIC_API_KEY="none",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )
    )
    assert result["result"] == "".join(agent.turns[1]) and not result["is_error"]
    assert SECRET in agent.prompt(1)
