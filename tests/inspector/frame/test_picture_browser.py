"""Protects: a stutter and its culprit become one picture, with one click."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tests.inspector.browser import needs_browser, opened
from tests.inspector.recorded import events

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser


def test_a_stutter_is_saved_as_a_picture(browser: Browser, recorded: str, tmp_path: Path) -> None:
    request_id = events()[0].scheduled[0].request_id
    with opened(browser, f"{recorded}#/timeline?request={request_id}&at=300") as page:
        page.wait_for_selector("aside >> text=Its longest gap")
        with page.expect_download() as saved:
            page.click("aside >> text=Save as a picture")
        path = tmp_path / saved.value.suggested_filename
        saved.value.save_as(path)
    content = path.read_bytes()
    assert path.name == f"twostroke-stutter-{request_id}.png"
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1920
    assert height > 300
    assert len(content) > 10_000
