"""Writes ``docs/validation/parity.md``: ``python -m tests.models.parity_table``."""

from __future__ import annotations

import sys
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

from benchmarks.environment import OtherPrograms, environment, environment_text
from tests.models.drawn_families import NUM_DRAWN, drawn_config
from tests.models.parity import TOLERANCE, Distances, measure_distances
from tests.models.tiny_families import FAMILIES

PAGE = Path("docs/validation/parity.md")
_HEAD = f"""# Parity with transformers

How far logits are from those of transformers, by `model_type`: the largest distance over all
configurations, in float32. The tests allow {TOLERANCE:g}. Weights are random. "Whole" is one pass
without a cache; "chunks" go through the paged cache in four ways of cutting; "preempted" comes
after half the tokens were computed and lost; "hit" is of log-probabilities after a prefix hit.

"""
_COLUMNS = "| `model_type` | configurations | whole | chunks | preempted | hit |\n|---|--:|" + (
    "--:|" * 4
)


def main() -> None:
    """Measures all configurations that the tests know, and writes the page."""
    others = OtherPrograms()
    drawn = [drawn_config(number) for number in range(NUM_DRAWN)]
    text = _HEAD
    for title, configs in (
        ("A configuration for each trait of a family", [*FAMILIES.values()]),
        (f"{NUM_DRAWN} configurations drawn at random", drawn),
    ):
        rows = [_row(model_type, found) for model_type, found in sorted(_measured(configs).items())]
        text += f"## {title}\n\n" + "\n".join([_COLUMNS, *rows]) + "\n\n"
    command = "python -m tests.models.parity_table"
    PAGE.write_text(text + "## Where\n\n" + environment_text(environment(command, others.share())))
    print(f"wrote {PAGE}", file=sys.stderr)


def _measured(configs: list[dict[str, Any]]) -> dict[str, list[Distances]]:
    by_type: dict[str, list[Distances]] = {}
    for raw in track(configs, "configurations"):
        with TemporaryDirectory() as folder:
            by_type.setdefault(raw["model_type"], []).append(measure_distances(raw, Path(folder)))
    return by_type


def _row(model_type: str, found: list[Distances]) -> str:
    largest = [max(of_one_way) for of_one_way in zip(*map(astuple, found), strict=True)]
    shown = " | ".join(f"{distance:.1e}" for distance in largest)
    return f"| `{model_type}` | {len(found)} | {shown} |"


if __name__ == "__main__":
    main()
