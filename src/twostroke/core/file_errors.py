"""Why a file could not be read, as an error message says it."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """One line, without the file: the caller names it."""
    message = (isinstance(error, OSError) and error.strerror) or str(error)
    return message.splitlines()[0] if message else type(error).__name__
