"""What the tests of the page share: one browser, and one recording, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.inspector.browser import running_browser
from tests.inspector.showing import showing

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    """The page's address over a recording."""
    with showing("recording") as address:
        yield address
