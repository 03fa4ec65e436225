"""Protects: what plans, serves, shows and sizes starts without torch, in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers")
IMPORT_ALL = """
import importlib, pkgutil, sys
module = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(getattr(module, "__path__", ()), sys.argv[1] + "."):
    if ".triton." not in found.name:  # which comes with PyTorch's builds for CUDA
        importlib.import_module(found.name)
"""
HELP = """
import sys
from twostroke.cli.main import run
assert run(sys.argv[1:]) == 0
"""


def torch_free_modules() -> list[str]:
    config = ConfigParser()
    config.read(ROOT / ".importlinter")
    return config["importlinter:contract:torch-free"]["source_modules"].split()


def heavy_imports(code: str, *arguments: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after ``code``.

    The code's own output goes first.
    """
    report = (
        f"\nimport json, sys\nprint(json.dumps([name for name in {HEAVY!r} if name in"
        " sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + report, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_the_list_is_not_empty() -> None:
    assert {"twostroke.scheduling", "twostroke.kv_cache", "twostroke.server"} <= set(
        torch_free_modules()
    )


def test_the_package_itself_imports_nothing_heavy() -> None:
    assert heavy_imports("import twostroke") == []


@pytest.mark.parametrize("module", torch_free_modules())
def test_importing_it_all_leaves_torch_out(module: str) -> None:
    assert heavy_imports(IMPORT_ALL, module) == []


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]])
def test_the_command_line_explains_itself_without_torch(arguments: list[str]) -> None:
    assert heavy_imports(HELP, *arguments) == []
