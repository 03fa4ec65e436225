"""``/docs`` loads all that it needs from this server, and its policy allows nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.http_calls import client_for
from tests.server.scripted import ScriptedEngine
from twostroke.server.http.docs_page import routes


async def test_the_page_names_no_other_host_and_holds_no_script() -> None:
    async with client_for(ScriptedEngine()) as client:
        page = await client.get("/docs")
        addresses = re.findall(r'(?:src|href|spec-url)="([^"]*)"', page.text)
        loaded = {name: await client.get("/" + name) for name in addresses if name != "data:,"}
        gone = [await client.get(path) for path in ("/redoc", "/docs/oauth2-redirect")]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert loaded.keys() == {"docs/rapidoc-min.js", "openapi.json"}
    assert all(answer.status_code == 200 for answer in loaded.values())
    assert loaded["docs/rapidoc-min.js"].headers["content-type"].startswith("text/javascript")
    assert not re.search(r"https?:|//|<script(?![^>]* src=)|<style|\son\w+=", page.text)
    assert 'load-fonts="false"' in page.text
    assert [answer.status_code for answer in gone] == [404, 404]


async def test_its_policy() -> None:
    async with client_for(ScriptedEngine()) as client:
        policy = (await client.get("/docs")).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == "'self'"
    assert not re.search(r"\*|https?:|unsafe-eval", policy)
    assert [name for name, value in rules.items() if "unsafe-inline" in value] == ["style-src"]


def test_the_script_is_what_was_published() -> None:
    """Its licence lies beside it, as it asks."""
    folder = Path(routes.__file__).parent
    assert "RapiDoc 9.3.8" in (folder / routes.SCRIPT).read_text("utf-8")[:100]
    assert "Mrinmoy Majumdar" in (folder / "rapidoc.LICENSE").read_text("utf-8")
