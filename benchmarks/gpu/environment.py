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


def record(folder: Path, name: str, device: str, rows: list[dict[str, Any]]) -> None:
    """Write ``NAME-DEVICE-DATE.json`` into the folder of results."""
    where = environment(device)
    folder.mkdir(parents=True, exist_ok=True)
    kind = device.split(":")[0]
    path = folder / f"{name}-{kind}-{where['date'][:10]}.json"
    path.write_text(json.dumps({**where, "rows": rows}, indent=1) + "\n")
    print(f"written: {path}")
