"""Which build of the compiled kernels runs, for tests of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twostroke.kernels.library import load_library

INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "generic")


@contextmanager
def selected(instruction_set: str) -> Iterator[bool]:
    """Runs this build meanwhile; false, and the one before runs on, where the processor cannot."""
    library = load_library()
    assert library is not None, "the kernels were not compiled: python hatch_build.py says why"
    before = library.instruction_set
    try:
        yield library.select(instruction_set)
    finally:
        library.select(before)
