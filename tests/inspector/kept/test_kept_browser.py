"""Protects: a recording as one file: opened from the disk, without a server, it still explains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.inspector.browser import needs_browser, violations
from tests.inspector.recorded import events, recording
from twostroke.cli.main import run
from twostroke.observability.fleet_file import _FIRST

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run.html"
    # In a process of its own: on this thread Playwright's loop runs.
    command = ["-m", "twostroke", "inspect", str(recording()), "--html", str(path)]
    facts = ["--model", "llama-3.1-8b", "--gpu", "h100"]
    subprocess.run([sys.executable, *command, *facts], check=True)
    return path


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_it_opens_from_the_disk_and_explains(
    browser: Browser, kept: Path, width: int, theme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, offline=True
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda m: trouble.append(m.text) if m.type == "error" else None)
    page.goto(kept.as_uri())
    page.wait_for_selector(".step h2")
    shown = int(re.sub(r"\D", "", page.locator("footer .num").first.inner_text()))
    assert shown == events()[-1].step
    assert violations(page) == []
    late = max(
        (event.time - share.queued_since, share.request_id)
        for event in events()
        for share in event.scheduled
        if share.queued_since is not None
    )[1]
    page.goto(f"{kept.as_uri()}#/request?request={late}")
    page.wait_for_selector(".whypanel li >> text=all places taken")
    page.goto(f"{kept.as_uri()}#/timeline?at=300")
    page.wait_for_selector("text=Who stuttered?")
    page.wait_for_selector("footer .num >> text=300")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{kept.as_uri()}#/live?at=300")
    page.wait_for_selector("h2:has-text('Running') >> text=12")
    # It says what bound the server then, and leads to no page that it lacks.
    page.wait_for_selector(".bound >> text=Bound by its queue: all places are taken")
    page.wait_for_selector(".whypanel >> text=all places taken")
    assert page.locator(".bound a, .whypanel a").count() == 0
    assert violations(page) == []
    page.click("footer >> text=Play")
    page.locator("footer .num >> text=/^step 300$/").wait_for(state="detached")
    page.goto(f"{kept.as_uri()}#/learn")  # needs a server
    page.wait_for_selector("h2:has-text('Running')")
    assert trouble == []
    context.close()


def test_a_fleets_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.fleet.jsonl"
    path.write_bytes(_FIRST)
    assert run(["inspect", str(path), "--html", str(tmp_path / "x.html")]) != 0
    assert "several replicas" in capsys.readouterr().err
