"""Reports of small runs, and what a browser has drawn of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulator.scenarios import runs
from twostroke.inspector.report import report_page
from twostroke.simulator.reports.fields import run_fields

if TYPE_CHECKING:
    from playwright.sync_api import Page

Fields = dict[str, Any]


def fields_of(*axes: str, **workload: Any) -> list[Fields]:
    return [run_fields(run) for run in runs(*axes, **workload)]


def mailed(folder: Path, fields: Sequence[Fields]) -> str:
    """Where a report lies on disk."""
    path = folder / "report.html"
    path.write_text(report_page(fields), encoding="utf-8")
    return path.as_uri()


def has_drawn(page: Page, label: str, colour: str) -> bool:
    """Whether a visible canvas of that label has pixels of that colour of the page."""
    return bool(
        page.evaluate(
            """([label, colour]) => {
  const canvas = [...document.querySelectorAll("canvas")].find(
    (canvas) => canvas.getAttribute("aria-label").startsWith(label) && canvas.checkVisibility());
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const hex = style.getPropertyValue(`--${colour}`).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 250 && wanted.every((value, i) => Math.abs(data[at + i] - value) < 3))
      return true;
  }
  return false;
}""",
            [label, colour],
        )
    )


def drawn(page: Page, label: str, colour: str) -> None:
    for _ in range(100):
        if has_drawn(page, label, colour):
            return
        page.evaluate("() => new Promise(requestAnimationFrame)")
    raise AssertionError(f"{label} has no {colour}")
