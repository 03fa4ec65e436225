"""Which build of the compiled kernels runs, for tests of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from tests.kernels.in_software import library_in_software
from twostroke.kernels import library as library_module
from twostroke.kernels.library import Library, load_library

INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "generic")


@contextmanager
def selected(instruction_set: str) -> Iterator[bool]:
    """Runs this build meanwhile, for what is loaded meanwhile; false, and the one before runs on,
    where that cannot be.

    Where the processor has no such instructions, they are done in software.
    """
    library = load_library()
    assert library is not None, "the kernels were not compiled: python hatch_build.py says why"
    before = library.instruction_set
    try:
        if library.select(instruction_set):
            yield True
            return
        path = library_in_software() if library.select("avx2") else None
    finally:
        library.select(before)
    if path is None:
        yield False
        return
    with patch.object(library_module, "Library", partial(Library, path)):
        load_library.cache_clear()
        try:
            library = load_library()
            assert library is not None and library.select(instruction_set)
            yield True
        finally:
            load_library.cache_clear()
