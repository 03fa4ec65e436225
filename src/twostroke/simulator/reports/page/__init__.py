"""Files that every page of a report holds: style sheet, script, and uPlot with its licence."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def read_styles() -> str:
    """uPlot's style sheet and the page's own."""
    return _read("uPlot.min.css") + "\n" + _read("page.css")


def read_scripts() -> tuple[str, str]:
    """uPlot, and the script that draws the charts."""
    return _read("uPlot.iife.min.js"), _read("page.js")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8").strip()
