"""Where a result was made: date, device, versions, commit."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def environment(device: str) -> dict[str, Any]:
    """What stands above every recorded number."""
    name = (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else platform.processor() or "cpu"
    )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
    }


class Record:
    """Rows of one kind, in ``NAME-DEVICE-DATE.json``: a part that is cut off keeps what it had.

    Attributes:
        rows: What ``add`` got; rows that grow are written again by ``write``.
    """

    def __init__(self, folder: Path, name: str, device: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self._where = environment(device)
        kind = device.split(":")[0]
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}-{kind}-{self._where['date'][:10]}.json"

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(row, flush=True)
        self.write()

    def write(self) -> None:
        self._path.write_text(json.dumps({**self._where, "rows": self.rows}, indent=1) + "\n")
