"""Which roles of messages a chat template knows: the words that it compares roles with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2 import nodes

# Nothing that could be taken for a special token.
ROLE_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"


def roles_in(template: nodes.Template) -> frozenset[str]:
    """Roles that a parsed template asks for, as in ``message.role == "ipython"``."""
    words = (
        word
        for comparison in template.find_all(nodes.Compare)
        if _reads_a_role(comparison)
        for word in _texts(comparison)
    )
    return frozenset(word for word in words if re.match(ROLE_PATTERN, word) and word != "role")


def _reads_a_role(comparison: nodes.Compare) -> bool:
    return (
        any(node.attr == "role" for node in comparison.find_all(nodes.Getattr))
        or any(node.name == "role" for node in comparison.find_all(nodes.Name))
        or "role" in _texts(comparison)
    )


def _texts(node: nodes.Node) -> Iterator[str]:
    return (const.value for const in node.find_all(nodes.Const) if isinstance(const.value, str))
