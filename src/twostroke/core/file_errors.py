"""Why a file could not be read, as an error message says it."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """One line, without the file: the caller names it."""
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    return said.splitlines()[0] if said else type(error).__name__
