"""What keeps the guide true: the map, its marks and the quoted loop are those of the source."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from tests.test_torch_free import torch_free_modules
from twostroke.engine.engine import Engine

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "twostroke"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
MAX_FILES = 20
MAX_LINES = 400
MAX_FILES_OF_A_RECIPE = 5
# Files that may be longer, each with its reason.
LONGER: dict[str, str] = {}


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


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    notes = sorted(path.name for path in folder.glob("0*.md"))
    assert notes and all(f"({name})" in index for name in notes)
    assert [name[:4] for name in notes] == [f"{number:04}" for number in range(1, len(notes) + 1)]
