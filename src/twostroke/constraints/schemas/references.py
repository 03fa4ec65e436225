"""What the references of a JSON schema lead to, inside of the schema alone."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


class References:
    """Finds targets by pointer (``#/$defs/a``), by anchor (``#a``), or by the schema's own id."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._anchors: dict[str, Any] | None = None

    def resolve(self, reference: str) -> Any | None:
        """The schema that a reference names; ``None`` if it is not in this schema."""
        address, _, fragment = reference.partition("#")
        root = self._root
        own = root.get("$id", root.get("id", "")) if isinstance(root, dict) else ""
        if address and address != str(own).rstrip("#"):
            return None
        fragment = unquote(fragment)
        if not fragment or fragment == "/":
            return root
        if fragment.startswith("/"):
            return self._follow(fragment[1:].split("/"))
        return self._anchored().get(fragment)

    def _follow(self, steps: list[str]) -> Any | None:
        node = self._root
        for step in steps:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and step.isdecimal() and int(step[:9]) < len(node):
                node = node[int(step[:9])]
            else:
                return None
        return node if isinstance(node, (bool, dict)) else None

    def _anchored(self) -> dict[str, Any]:
        """All schemas with an anchor; looked for when the first is needed."""
        if self._anchors is None:
            self._anchors = {}
            nodes = [self._root]
            while nodes:
                node = nodes.pop()
                if isinstance(node, dict):
                    if isinstance(anchor := node.get("$anchor"), str):
                        self._anchors.setdefault(anchor, node)
                    nodes.extend(node.values())
                elif isinstance(node, list):
                    nodes.extend(node)
        return self._anchors
