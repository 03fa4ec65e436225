"""A checkpoint of the benchmarks' own making, of a size for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import make_checkpoint

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 300,
}


def shrink(monkeypatch: pytest.MonkeyPatch, size: str = "10m", **changes: Any) -> None:
    """Make ``make_checkpoint`` write tiny checkpoints where it is asked for this size."""
    tiny = {**make_checkpoint.SIZES[size], **TINY, **changes}
    monkeypatch.setitem(make_checkpoint.SIZES, size, tiny)


def tiny_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    """Write one into ``folder``, and return it."""
    shrink(monkeypatch, **changes)
    make_checkpoint.main("10m", str(folder))
    return folder
