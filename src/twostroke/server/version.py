"""The version of the installed package."""

from __future__ import annotations


def package_version() -> str:
    """The version in the package's metadata; ``0+source`` where it is not installed."""
    # Imported here: `twostroke --help` does not need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("twostroke")
    except PackageNotFoundError:
        return "0+source"
