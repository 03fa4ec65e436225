"""The page's own scripts and styles as they are sent: without the lines that are comments alone."""

from __future__ import annotations

import re

# Whole lines only: what stands beside code is left, since telling it from a string needs a parser.
_COMMENTS = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)


def without_comments(text: str) -> str:
    """A script or style sheet without its lines of comments.

    A template literal must have no line that looks like one; a test holds this for every file.
    """
    return _COMMENTS.sub("", text)
