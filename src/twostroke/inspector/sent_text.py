"""The page's own scripts and styles as they are sent: without comment lines and indentation."""

from __future__ import annotations

import re

# Whole lines only: what stands beside code is left, since telling it from a string needs a parser.
_COMMENTS = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


def without_margins(text: str) -> str:
    """A script or style sheet without its lines of comments, and without what indents the others.

    Templates of several lines must be markup, in which spaces count no more than line ends, and
    must have no line that looks like a comment; tests hold both for every file.
    """
    return _INDENTATION.sub("", _COMMENTS.sub("", text))
