"""Protects: a page as one file is whole, needs no network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from twostroke.inspector import one_file as bundling
from twostroke.inspector.one_file import bundle, one_file
from twostroke.inspector.report import ENTRY, SHEETS, report_page
from twostroke.inspector.static_files import FOLDER

HOSTILE = 'rate=1</script><script>alert("&amp;")</script><!--<script>'


class Page(HTMLParser):
    """A page taken apart: what it would load, its policy, its elements by kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.policy = ""
        self.texts: dict[str, list[str]] = {}
        self._kind = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loads += [values[name] for name in ("src", "href") if name in values]
        assert not any(name.startswith("on") or name == "style" for name in values)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self._kind = values.get("type", tag)

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._kind, []).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._kind = ""


def test_its_policy_allows_its_own_styles_and_script_alone() -> None:
    page = Page(report_page([]))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    for sources, kind in (("style-src", "style"), ("script-src", "module")):
        (text,) = page.texts[kind]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[sources] == f"'sha256-{digest}'"


def test_it_loads_nothing() -> None:
    page = Page(report_page([]))
    assert page.loads == []
    (styles,), (script,) = page.texts["style"], page.texts["module"]
    assert "@import" not in styles and "url(" not in styles
    for way in ("fetch(", "import(", "XMLHttpRequest", "sourceMappingURL"):
        assert way not in script


def test_no_text_ends_the_data() -> None:
    value = {"runs": [{"label": HOSTILE}]}
    page = Page(one_file(ENTRY, SHEETS, ("report", value)))
    (data,) = page.texts["application/json"]
    assert json.loads(data) == value
    assert len(page.texts["module"]) == 1


def test_libraries_come_with_their_licences() -> None:
    (licences,) = Page(report_page([])).texts["text/plain"]
    assert licences == (FOLDER / "vendor/LICENSES.txt").read_text()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundling, "FOLDER", tmp_path)
    (tmp_path / "lib").mkdir()
    return tmp_path


def test_each_module_stands_once_after_what_it_imports(modules: Path) -> None:
    (modules / "a.js").write_text('import { b as two } from "./lib/b.js";\nexport const a = two;\n')
    (modules / "lib/b.js").write_text(
        'import c from "../lib/c.js";\nfunction bee() {}\nexport{bee as b};//# sourceMappingURL=b'
    )
    (modules / "lib/c.js").write_text("export default function(){}")
    script = bundle("a.js")
    assert [script.count(f'modules["{name}"] =') for name in ("a.js", "lib/b.js", "lib/c.js")] == [
        1,
        1,
        1,
    ]
    for line in (
        'const { b: two } = modules["lib/b.js"];',
        'const { default: c } = modules["lib/c.js"];',
        "return { b: bee };",
        "return { default: default_ };",
        "return { a };",
    ):
        assert line in script
    assert script.index('modules["lib/c.js"] =') < script.index('modules["a.js"] =')
    assert "sourceMappingURL" not in script


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('import { a } from "./a.js";\n', "a.js imports a.js: a circle"),
        ('import "./b.js";\n', "cannot bundle 'import"),
        ('export * from "./b.js";\n', "cannot bundle 'export"),
        ('export { b } from "./b.js";\n', "cannot bundle ' from"),
        ("export let a = 1;\n", "cannot bundle 'export let"),
    ],
)
def test_what_it_does_not_understand_it_refuses(modules: Path, text: str, message: str) -> None:
    (modules / "a.js").write_text(text)
    with pytest.raises(ValueError, match=message):
        bundle("a.js")
