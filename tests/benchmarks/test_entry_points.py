"""Every benchmark that is called by its name reads its arguments, so ``--help`` runs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.environment import ROOT

# Started by others, and told where to connect.
WORKERS = {"benchmarks/chat_templates/worker.py"}
READERS = ("cyclopts.run(", "cyclopts.App(", "ArgumentParser(")


def test_what_is_run_by_its_name_reads_arguments() -> None:
    silent = [
        name
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in WORKERS
        and 'if __name__ == "__main__":' in (text := path.read_text(encoding="utf-8"))
        and not any(reader in text for reader in READERS)
    ]
    assert not silent, f"--help would run {silent}: cyclopts.run(main)"


@pytest.mark.parametrize("module", ["benchmarks.doctor", "benchmarks.gguf.llama_cpp_tokens"])
def test_help_is_shown_and_ends(module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert "usage" in shown.stdout.lower()
