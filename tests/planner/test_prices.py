"""Protects: prices are the sheets' or a file's, each with its source, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.planner.prices import GUESSED, PriceList, prices_text
from twostroke.simulator.cost.hardware_sheet import hardware_names, load_hardware


def test_a_written_file_says_what_the_sheets_say(tmp_path: Path) -> None:
    sheets = [load_hardware(name) for name in hardware_names()]
    path = tmp_path / "prices.toml"
    path.write_text(prices_text(sheets, PriceList()))
    own = PriceList(path)
    for sheet in sheets:
        assert own.price(sheet) == PriceList().price(sheet)
        assert own.price(sheet).per_hour == sheet.price_per_hour


def test_an_edited_price_counts_and_may_be_a_guess(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[h100]\nper_hour = 1.5\n[l4]\nper_hour = 1\nsource = "us"\ndate = "2026-11"\n')
    prices = PriceList(path)
    assert prices.price(load_hardware("h100")).per_hour == 1.5
    assert prices.price(load_hardware("h100")).mark == GUESSED
    assert prices.price(load_hardware("l4")).mark == "2026-11"
    assert prices.price(load_hardware("l40s")) == PriceList().price(load_hardware("l40s"))


@pytest.mark.parametrize(
    "text",
    [
        "[h1000]\nper_hour = 1",
        "[h100]\nper_hour = -1",
        "[h100]\nper_hour = nan",
        "[h100]\nper_hour = true",
        "[h100]\nprice = 1",
        "[h100]",
        "h100 = 1",
        "[h100]\nper_hour = 1\nsource = 5",
        "no toml",
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        PriceList(path)
    assert error.value.hint
