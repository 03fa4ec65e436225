"""Protects: the page is small, whole, licensed, and runs no script but its own."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from twostroke.inspector.static_files import FOLDER, HEADERS, known_files, page_paths

ROOT = Path(__file__).parents[2]
MAX_GZIP = 250 * 1024
MARKDOWN = "vendor/marked.esm.js"  # the chat loads it, once it is opened
IMPORT = re.compile(r'^(?:import|export)\b[^;]*?from "([^"]+)"', re.MULTILINE)


def test_all_files_together_are_small() -> None:
    sizes = {name: len(gzip.compress(f.content, 9)) for name, f in known_files().items()}
    assert sizes.pop(MARKDOWN) < 16 * 1024
    assert sum(sizes.values()) < MAX_GZIP, sizes


def test_only_the_chat_loads_what_reads_markdown() -> None:
    users = {name for name, f in known_files().items() if b"marked.esm.js" in f.content}
    assert users == {"pages/chat/markdown.js", "vendor/versions.json", MARKDOWN}
    text = known_files()["pages/chat/markdown.js"].content.decode()
    assert 'await import("../../vendor/marked.esm.js")' in text
    assert "marked.esm.js" not in IMPORT.findall(text)


def test_every_import_leads_to_a_file_that_is_served() -> None:
    files = known_files()
    for name, file in files.items():
        if not name.endswith(".js"):
            continue
        for target in IMPORT.findall(file.content.decode()):
            assert target.startswith("."), f"{name} imports {target}, which no browser resolves"
            path = (file.path.parent / target).resolve().relative_to(FOLDER.resolve())
            assert path.as_posix() in files, f"{name} imports {target}"


def test_the_page_holds_no_script_and_no_other_host() -> None:
    page = known_files()["index.html"].content.decode()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
    assert "style=" not in page
    assert "on" + "click" not in page
    assert "unsafe" not in HEADERS["content-security-policy"]
    for name, file in known_files().items():
        if not name.startswith("vendor/"):
            hosts = set(re.findall(rb"https?://[^\s\"'`<)]+", file.content))
            assert hosts <= {b"http://www.w3.org/2000/svg"}, name
            assert b"innerHTML" not in file.content, name


def test_libraries_are_as_published_with_their_licences() -> None:
    versions = json.loads((FOLDER / "vendor/versions.json").read_text())
    scripts = {path.name for path in (FOLDER / "vendor").glob("*.js")}
    assert scripts == set(versions)
    licences = (FOLDER / "vendor/LICENSES.txt").read_text()
    for name, about in versions.items():
        content = (FOLDER / "vendor" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == about["sha256"], name
        title = about["package"].lstrip("@").replace("/", "-")
        assert f"== {title}-{about['version']}" in licences


def test_paths_that_need_no_key_are_the_page_alone() -> None:
    assert all(path.startswith("/inspect") for path in page_paths())
    assert not any("v1" in path or ".." in path for path in page_paths())


def test_wheel_and_sdist_have_the_page() -> None:
    for builder, prefix in ((WheelBuilder(str(ROOT)), ""), (SdistBuilder(str(ROOT)), "src/")):
        names = {file.distribution_path for file in builder.recurse_included_files()}
        for name in known_files():
            assert f"{prefix}twostroke/inspector/static/{name}" in names
