"""Sizes in bytes, read from flags and written for people."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from ``512MiB``, ``2GB``, ``1.5g`` or a plain number; of memory, k is always 1024.

    Raises:
        ValueError: It is none of these, or beyond 2^63.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    size = float(match[1]) * 1024 ** "_kmgt".index(match[2].lower() or "_")
    if size >= 2**63:
        raise ValueError(f"{text[:40]!r} is more than any memory")
    return int(size)


def format_bytes(count: float) -> str:
    """``21.3 MiB`` or ``2.00 GiB``: binary units, as a program's own memory is counted."""
    size = count
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB" if size < 1024 else f"{size / 1024:.2f} TiB"


def format_decimal_bytes(count: float) -> str:
    """``80.0 GB`` or ``21.3 MB``: decimal units, as data sheets of devices count."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
