"""No form ends the process: each is compiled, or refused by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.constraints.hostile_forms import FORMS
from tests.server.running import ROOT


@pytest.mark.parametrize("name", FORMS)
def test_the_process_goes_on(name: str) -> None:
    command = [sys.executable, "-m", "tests.constraints.hostile_forms", name]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    assert result.stdout.strip().startswith(("compiled", "refused")), result.stdout
