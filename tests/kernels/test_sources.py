"""Protects: the kernels compile without warnings, each header alone, and builds share no code."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import hatch_build
from tests.kernels.in_software import BUILDS, SOURCES

Command = Sequence[str | Path]


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    command = hatch_build.find_compiler()
    if command is None or shutil.which(command[0]) is None:
        pytest.skip("no C++ compiler")
    return command


def _messages(commands: Sequence[Command], inputs: Sequence[str | None]) -> str:
    """What compilers write that fail; nothing of those that are too old for an instruction set."""
    run = partial(subprocess.run, capture_output=True, text=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda command, text: run(command, input=text), commands, inputs)
        failed = [result.stderr for result in done if result.returncode]
    return "\n".join(message for message in failed if "invalid cpu feature" not in message)


def test_sources_compile_without_warnings(compiler: list[str], tmp_path: Path) -> None:
    """With -O1 the optimizer's warnings come too. It is a third of -O3's time."""
    commands: list[Command] = []
    for source in sorted(SOURCES.rglob("*.cpp")):
        flags = [*hatch_build.flags_for(source, SOURCES), "-O1", "-Werror"]
        commands.append([*compiler, *flags, "-c", source, "-o", tmp_path / f"{source.stem}.o"])
    assert len(commands) == 6
    assert _messages(commands, [None] * len(commands)) == ""


def test_builds_in_software_compile_without_warnings(compiler: list[str]) -> None:
    commands: list[Command] = []
    for name in BUILDS:
        source = SOURCES / "builds" / f"{name}.cpp"
        flags = [*hatch_build.flags_for(source, SOURCES, BUILDS), "-Werror", "-fsyntax-only"]
        commands.append([*compiler, *flags, source])
    assert _messages(commands, [None] * len(commands)) == ""


def test_each_header_includes_what_it_uses(compiler: list[str]) -> None:
    headers = sorted(SOURCES.rglob("*.hpp"))
    assert headers
    flags = [*hatch_build.flags_for(headers[0], SOURCES), "-Werror", "-Wno-unused-function"]
    command = [*compiler, *flags, "-fsyntax-only", "-x", "c++", "-"]
    inputs = [f'#include "{header.relative_to(SOURCES)}"\n' for header in headers]
    assert _messages([command] * len(headers), inputs) == ""


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm lists the functions")
@pytest.mark.parametrize("name", ["avx512", "avxvnni", "avx2", "generic"])
def test_builds_share_no_function(compiler: list[str], tmp_path: Path, name: str) -> None:
    """The linker would keep one copy, compiled for one instruction set, of a function that several
    builds define. Without optimization all copies are there to be seen.
    """
    source, target = SOURCES / "builds" / f"{name}.cpp", tmp_path / "object.o"
    flags = hatch_build.flags_for(source, SOURCES)
    assert _messages([[*compiler, *flags, "-O0", "-c", source, "-o", target]], [None]) == ""
    if not target.exists():
        pytest.skip("the compiler is too old for these instructions")
    command: Command = ["nm", "--defined-only", "--extern-only", "--demangle", target]
    lines = subprocess.check_output(command, text=True).splitlines()
    symbols = [line.split(maxsplit=2) for line in lines]
    functions = [symbol for _, kind, symbol in symbols if kind in "TW"]
    assert functions == [f"twostroke::{name}_kernels()"]
