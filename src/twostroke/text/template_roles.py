"""Which roles of messages a chat template knows: the words that it compares roles with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

from jinja2 import nodes

# Nothing that could be taken for a special token.
ROLE_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"

NodeT = TypeVar("NodeT", bound=nodes.Node)


def roles_in(template: nodes.Template) -> frozenset[str]:
    """Roles that a parsed template asks for, as in ``message.role == "ipython"``."""
    words = (
        word
        for comparison in _nodes_in(template, nodes.Compare)
        if _reads_a_role(comparison)
        for word in _texts(comparison)
    )
    return frozenset(word for word in words if re.match(ROLE_PATTERN, word) and word != "role")


def _reads_a_role(comparison: nodes.Compare) -> bool:
    return (
        any(node.attr == "role" for node in _nodes_in(comparison, nodes.Getattr))
        or any(node.name == "role" for node in _nodes_in(comparison, nodes.Name))
        or "role" in _texts(comparison)
    )


def _texts(node: nodes.Node) -> Iterator[str]:
    values = (constant.value for constant in _nodes_in(node, nodes.Const))
    return (value for value in values if isinstance(value, str))


def _nodes_in(root: nodes.Node, kind: type[NodeT]) -> Iterator[NodeT]:
    """Nodes below another, in any order.

    Jinja's own search recurses, and a sum of 1,000 terms is 1,000 nodes deep.
    """
    waiting = [root]
    while waiting:
        for child in waiting.pop().iter_child_nodes():
            if isinstance(child, kind):
                yield child
            waiting.append(child)
