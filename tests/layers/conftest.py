"""What the tests of compiled attention share."""

from __future__ import annotations

import pytest

from twostroke.kernels.library import Library, load_library


@pytest.fixture
def library(instruction_set: str) -> Library:
    """Set to each instruction set in turn."""
    kernels = load_library()
    assert kernels is not None
    assert kernels.instruction_set == instruction_set
    return kernels
