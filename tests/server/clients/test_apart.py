"""Clients whose own pins exclude ours (decision 0021): each in a process of another environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.server.clients.conftest import CALL, TurnsEngine
from tests.server.running import ROOT

HERE = Path(__file__).parent / "apart"
PYTHON = Path(os.environ.get("TWOSTROKE_CLIENTS", ROOT / ".venv-clients")) / "bin" / "python"
WRONG, REPORT = (
    (f'<tool_call>\n{{"name": "Report", "arguments": {{"rain": {rain}}}}}\n</tool_call>',)
    for rain in ('"perhaps"', "true")
)
SCRIPTS = sorted(path.stem for path in HERE.glob("*_calls.py"))


@pytest.mark.skipif(not PYTHON.exists(), reason="make clients makes the environment")
@pytest.mark.parametrize("script", SCRIPTS)
def test_calls_as_users_write_them(
    script: str,
    agent: TurnsEngine,
    agent_url: str,
    pilot_url: str,
    vectors_url: str,
    tmp_path: Path,
) -> None:
    if script == "instructor_calls":
        agent.turns = [CALL, CALL, CALL, WRONG, REPORT]
    result = subprocess.run(
        [PYTHON, HERE / f"{script}.py", pilot_url, agent_url, vectors_url],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
