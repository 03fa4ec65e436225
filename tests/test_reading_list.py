"""Protects the reading list of the guide: the engine is few files and lines, without features."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "twostroke"
GUIDE = ROOT / "docs" / "architecture.md"
MIN_FILES, MAX_FILES = 20, 30
MAX_LINES = 4_000
# What the engine's files never import: each joins them at a seam.
FEATURES = (
    "constraints",
    "gateway",
    "inspector",
    "kv_cache.tier_directory",
    "kv_tiers",
    "scheduling.adaptive_depth",
    "scheduling.preemption",
    "scheduling.speculation",
    "scheduling.tiered_blocks",
    "scheduling.tuned_budget",
    "server",
    "simulator",
    "spec_decode",
)


def reading_list() -> list[str]:
    """The files that the guide names, in its order."""
    section = GUIDE.read_text(encoding="utf-8").split("## The reading list\n")[1].split("\n## ")[0]
    entries = section[section.index("\n1. ") :]
    return re.findall(r"`([\w/]+\.py)`", entries)


def test_the_list_leads_from_a_request_to_its_draw() -> None:
    files = reading_list()
    assert (files[0], files[-1]) == ("core/request.py", "sampling/drawing.py")
    assert len(files) == len(set(files))
    assert MIN_FILES <= len(files) <= MAX_FILES
    missing = [name for name in files if not (SOURCE / name).is_file()]
    assert not missing, f"not in the tree: {missing}"


def test_the_list_is_read_in_a_weekend() -> None:
    lengths = {name: len((SOURCE / name).read_text().splitlines()) for name in reading_list()}
    assert sum(lengths.values()) <= MAX_LINES, lengths


def test_the_list_has_what_the_loop_cannot_be_read_without() -> None:
    """What is asked for, how tokens are taken in, what a table is, what a family says."""
    needed = {
        "core/generation_request.py",
        "kv_cache/block_table.py",
        "models/families/llama.py",
        "scheduling/progress.py",
    }
    assert needed <= set(reading_list())


def test_the_readme_counts_the_same_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"engine is {len(reading_list())} files and less than {MAX_LINES:,} lines" in readme


def test_files_of_the_list_import_no_feature() -> None:
    """Neither at the top nor in a function nor for types alone."""
    found = {
        f"{name} imports {imported}"
        for name in reading_list()
        for imported in _imports(SOURCE / name)
        if imported.removeprefix("twostroke.").startswith(tuple(f"{name}." for name in FEATURES))
    }
    assert not found, sorted(found)


def _imports(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, however it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("twostroke."))
