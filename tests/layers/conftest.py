"""The compiled kernels under each instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twostroke.kernels.library import load_library


@pytest.fixture(params=["avx512", "avxvnni", "avx2", "generic"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    library = load_library()
    assert library is not None
    before = library.instruction_set
    if not library.select(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library.select(before)
