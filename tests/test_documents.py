"""Documents and sources a reader can rely on: short lines, links that lead somewhere, real paths.

Each test collects all that is wrong before it fails, so that one run lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "twostroke"
MAX_COLUMNS = 100
MAX_GUIDE_WORDS = 1_500
GUIDE = ROOT / "docs" / "architecture.md"
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "training")
KINDS = (".md", ".py", ".cpp", ".hpp", ".sh", ".js", ".css", ".toml")
AT_THE_TOP = ("*.md", "*.toml", "Makefile", ".ci/run", ".importlinter")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
)
# Files in which lines may be longer, each with its reason.
WIDE: dict[str, str] = {
    **dict.fromkeys(
        (
            "benchmarks/claims/results/claims.md",
            "benchmarks/results/peers.md",
            "benchmarks/results/soak.md",
            "benchmarks/results/avx2/peers.md",
        ),
        "a table of a run whose rows name their figures, conditions and records",
    ),
    **dict.fromkeys(
        (
            "src/twostroke/server/http/docs_page/rapidoc-min.js",
            "src/twostroke/inspector/static/vendor/htm.module.js",
            "src/twostroke/inspector/static/vendor/marked.esm.js",
            "src/twostroke/inspector/static/vendor/preact.module.js",
            "src/twostroke/inspector/static/vendor/signals-core.js",
            "tests/inspector/axe/axe.min.js",
        ),
        "another project's file, as that project ships it",
    ),
    **dict.fromkeys(
        (f"training/bank/{path.name}" for path in (ROOT / "training" / "bank").glob("*.toml")),
        "questions and answers that pilot learns, each on one line",
    ),
}
# What may stand alone on a longer line: an address, which would be none if it were broken.
ADDRESS = re.compile(r"\s*https://\S+( \\)?")


def test_lines_are_short() -> None:
    """Code and documents, tables and links included, are read side by side on one screen."""
    too_wide = {
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in _files()
        if str(path.relative_to(ROOT)) not in WIDE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > MAX_COLUMNS and not ADDRESS.fullmatch(line)
    }
    assert not too_wide, _listed(f"longer than {MAX_COLUMNS} columns", too_wide)


def test_exceptions_are_needed() -> None:
    """A file that has become narrow is no exception any more."""
    narrow = {
        name
        for name in WIDE
        if max(map(len, (ROOT / name).read_text(encoding="utf-8").splitlines())) <= MAX_COLUMNS
    }
    assert not narrow, _listed("no longer wide", narrow)


def test_the_guide_is_read_to_its_end() -> None:
    num_words = len(GUIDE.read_text(encoding="utf-8").split())
    assert num_words <= MAX_GUIDE_WORDS, f"{GUIDE.name} has {num_words} words"


def test_links_lead_somewhere() -> None:
    """Every relative link of every document: the file exists, and so does the heading."""
    broken = set()
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, anchor = target.partition("#")
            path = document.parent / name if name else document
            if not path.exists():
                broken.add(f"{document.relative_to(ROOT)}: {target}")
            elif anchor and anchor not in _anchors(path):
                broken.add(f"{document.relative_to(ROOT)}: {target} (no such heading)")
    assert not broken, _listed("lead nowhere", broken)


def test_paths_in_guide_and_reference_exist() -> None:
    """What stands in backticks with a slash is a file or a folder: package, tests, or tree."""
    missing = {
        f"{document.relative_to(ROOT)}: {name}"
        for document in (GUIDE, *REFERENCE)
        for name in _paths(_prose(document))
        if not any((folder / name).exists() for folder in (ROOT, SOURCE, ROOT / "tests"))
    }
    assert not missing, _listed("not in the tree", missing)


def _files() -> Iterator[Path]:
    for pattern in AT_THE_TOP:
        yield from sorted(ROOT.glob(pattern))
    for name in FOLDERS:
        yield from sorted(path for path in (ROOT / name).rglob("*") if path.suffix in KINDS)


def _prose(document: Path) -> str:
    """A document without its code blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", document.read_text(encoding="utf-8"))


def _paths(text: str) -> Iterator[str]:
    """Names like ``core/step.py`` and ``server/``; not routes, flags or patterns."""
    for name in re.findall(r"`([^`\s]+/[^`\s]*)`", text):
        if re.fullmatch(r"[A-Za-z_.][\w./-]*", name):
            yield name


def _anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", _prose(document))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _listed(what: str, names: set[str]) -> str:
    return f"{len(names)} {what}:\n" + "\n".join(sorted(names))
