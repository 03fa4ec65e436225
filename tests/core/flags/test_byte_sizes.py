"""Protects: sizes are read as people write them, and every part shows them in the same form."""

from __future__ import annotations

import pytest

from twostroke.core.flags.byte_sizes import format_bytes, format_decimal_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("512MiB", 2**29),
        ("2GiB", 2**31),
        ("2GB", 2**31),
        ("1.5g", 3 * 2**29),
        ("64 kib", 2**16),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "3XB", "1e9", "1MiBs"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (50_000, "48.8 KiB"),
        (1000 * 2**20, "1000.0 MiB"),
        (2**31, "2.00 GiB"),
        (3 * 2**39, "1.50 TiB"),
    ],
)
def test_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(80e9, "80.0 GB"), (1e9, "1.0 GB"), (999.9e6, "999.9 MB"), (0, "0.0 MB")]
)
def test_decimal_units(count: float, text: str) -> None:
    assert format_decimal_bytes(count) == text
