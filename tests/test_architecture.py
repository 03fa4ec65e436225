"""What keeps the guide true: the map, its marks and the quoted loop are those of the source."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from textwrap import dedent

import pytest

from tests.test_torch_free import torch_free_modules
from twostroke.engine.engine import Engine

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "twostroke"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
MAX_FILES = 20
MAX_LINES_OF_A_FUNCTION = 60
MAX_LINES = 400
MAX_FILES_OF_A_RECIPE = 5
FRAGMENT = re.compile(r"(Of|The same|As|Those|By|With|Without|In|Beside|Until)\b")
FRAGMENT_OF_AN_ENTRY = re.compile(r"^ +[a-z_]+: (Of|The same|As)\b", re.MULTILINE)
# Files that may be longer, each with its reason.
LONGER: dict[str, str] = {}
# Public names that two files may define, each with its reason.
DEFINED_TWICE = {
    **dict.fromkeys(("main", "route", "serve", "simulate"), "commands, named as what one types"),
    **dict.fromkeys(
        ("AllowedTools", "CalledFunction", "ShownModel", "TextFields"),
        "two dialects call it so, and the API's document shows the name",
    ),
}


def parts_of_the_package() -> list[str]:
    """``engine/``, ``types.py`` ...: everything at the top of the package but its dunder files."""
    folders = [
        f"{path.name}/"
        for path in SOURCE.iterdir()
        if path.is_dir() and not path.name.startswith("__")
    ]
    files = [path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")]
    return sorted(folders + files)


@pytest.mark.parametrize("name", parts_of_the_package())
def test_every_part_of_the_package_is_on_the_map(name: str) -> None:
    assert re.search(rf"^\| `{re.escape(name)}`", ARCHITECTURE, re.MULTILINE), (
        f"{name} is not in docs/architecture.md"
    )


def test_the_marks_on_the_map_are_the_contract() -> None:
    marked = re.findall(r"^\| `([\w.]+?)(?:/|\.py)` †", ARCHITECTURE, re.MULTILINE)
    assert {f"twostroke.{name}" for name in marked} == set(torch_free_modules())


def test_the_quoted_loop_is_the_loop() -> None:
    assert dedent(inspect.getsource(Engine.step)) in ARCHITECTURE


@pytest.mark.parametrize("recipe", ["A CPU kernel", "An alert", "An inspector page"])
def test_a_recipe_of_the_guide_opens_few_files(recipe: str) -> None:
    """What is added often is added in few places; the guide names them all."""
    text = ARCHITECTURE.split(f"**{recipe}.** ")[1].split("\n\n")[0]
    places = set(re.findall(r"`([\w/]+(?:/|\.\w+))`", text))
    assert 3 <= len(places) <= MAX_FILES_OF_A_RECIPE, places


def test_files_have_one_subject() -> None:
    paths = [
        path
        for name in ("src", "tests", "benchmarks", "training", "examples")
        for path in (ROOT / name).rglob("*.py")
    ]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    too_long = {name for name, length in lengths.items() if length > MAX_LINES}
    assert too_long == LONGER.keys()


def test_a_folder_has_few_files() -> None:
    """A reader sees a whole folder at a glance; a fuller one has rooms."""
    counts = Counter(
        str(path.parent.relative_to(ROOT))
        for name in ("src", "tests")
        for path in (ROOT / name).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert not {name for name, count in counts.items() if count > MAX_FILES}


@cache
def modules() -> dict[str, ast.Module]:
    """The source by the names of its modules."""
    return {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): (
            ast.parse(path.read_text())
        )
        for path in SOURCE.rglob("*.py")
    }


def test_no_module_imports_one_that_imports_it() -> None:
    """Not even for types alone, or within a function: of two modules one can be read first."""
    imported = {
        name: {
            target
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            if target in modules() and target != name
        }
        for name, tree in modules().items()
    }
    TopologicalSorter(imported).prepare()  # raises CycleError


def test_functions_are_read_without_scrolling() -> None:
    long = {
        f"{module}.{node.name}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_LINES_OF_A_FUNCTION
    }
    assert not long


def test_what_several_threads_decode_has_one_decoder() -> None:
    # msgspec 0.22 ends the process where two threads make a type's first decoder together.
    made = {
        f"{name}:{call.lineno}"
        for name, tree in modules().items()
        if name.startswith(("twostroke.engine.", "twostroke.inspector.", "twostroke.kv_tiers."))
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr == "Decoder" or (call.func.attr == "decode" and _of_a_class(call))
    }
    assert made == set()


def _of_a_class(call: ast.Call) -> bool:
    types = [word.value for word in call.keywords if word.arg == "type"]
    return any(isinstance(node, ast.Name) and node.id not in dir(builtins) for node in types)


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    """None is a fragment that needs the one before, or the name, to be understood."""
    fragments = {
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and (text := str(node.value.value))
        and (FRAGMENT.match(text) or FRAGMENT_OF_AN_ENTRY.search(text))
    }
    assert not fragments


def test_a_public_name_is_defined_once() -> None:
    """A search for one finds one thing."""
    places = defaultdict(set)
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                places[node.name].add(module)
    twice = {name for name, where in places.items() if len(where) > 1 and name[0] != "_"}
    assert twice <= DEFINED_TWICE.keys()


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    notes = sorted(path.name for path in folder.glob("0*.md"))
    assert notes and all(f"({name})" in index for name in notes)
    assert [name[:4] for name in notes] == [f"{number:04}" for number in range(1, len(notes) + 1)]
