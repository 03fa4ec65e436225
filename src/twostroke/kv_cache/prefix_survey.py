"""A copy of what the prefix cache holds, made piece by piece between steps, and a tree of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from twostroke.core.request import BlockKey

# More would be no answer that people read; the rest is counted.
MAX_NODES, MAX_DEPTH = 1000, 64


class CachedPrefix(msgspec.Struct, kw_only=True):
    """Blocks in a row that have the same tiers, tenants and hits.

    Attributes:
        id: Hash of the last of them, and so of all tokens up to there.
        tokens: Tokens of these blocks alone, without what comes before.
        hits: Requests that were admitted with them from the cache.
        tiers: Where they are: ``memory`` is the KV cache itself.
        tenants: Whose requests stored or found them; not for everyone's eyes.
        pinned_seconds: How much longer they are pinned.
        children: What follows them.
    """

    id: str
    tokens: int
    hits: int
    tiers: list[str]
    tenants: list[str] | None = None
    pinned_seconds: float | None = None
    children: list[CachedPrefix] = []


class Looks(NamedTuple):
    """What blocks in a row have in common."""

    tiers: tuple[str, ...]
    tenants: tuple[str, ...]
    hits: int
    pinned: float | None


class CopiedBlock(NamedTuple):
    """One block's content as it was when it was copied."""

    parent: BlockKey | None
    looks: Looks


class PrefixTree(NamedTuple):
    """Prefixes by their first block; ``num_left_out`` blocks are in none of them."""

    prefixes: list[CachedPrefix]
    num_left_out: int


class _Run(NamedTuple):
    """Blocks in a row that differ in nothing but their place, and what comes after them."""

    keys: list[BlockKey]
    node: CachedPrefix
    children: list[BlockKey]


@dataclass(frozen=True, slots=True)
class PrefixSurvey:
    """A copy of the cache's contents; whoever has it may read it on any thread.

    The pieces are copied one after the other, so it is no state that ever was: what came or went
    meanwhile may be there or not.

    Attributes:
        parents: What each block follows, if anything; parents come before children.
        looks: How often each block was looked up; the keys are those of ``parents``.
        with_names: Whether tenants are named.
        block_size: Tokens of a block.
    """

    parents: Mapping[BlockKey, BlockKey | None]
    looks: Mapping[BlockKey, Looks]
    with_names: bool
    block_size: int

    def tree(self) -> PrefixTree:
        """Takes a microsecond or two for each block."""
        children: dict[BlockKey | None, list[BlockKey]] = {}
        for key, parent in self.parents.items():
            children.setdefault(parent if parent in self.parents else None, []).append(key)
        prefixes: list[CachedPrefix] = []
        waiting = [(key, 0, prefixes) for key in reversed(children.get(None, ()))]
        num_nodes, num_shown = 0, 0
        while waiting and num_nodes < MAX_NODES:
            key, depth, siblings = waiting.pop()
            run = self._run(key, children)
            siblings.append(run.node)
            num_nodes, num_shown = num_nodes + 1, num_shown + len(run.keys)
            if depth < MAX_DEPTH:
                waiting += [(c, depth + 1, run.node.children) for c in reversed(run.children)]
        return PrefixTree(prefixes, len(self.parents) - num_shown)

    def _run(self, key: BlockKey, children: Mapping[BlockKey | None, list[BlockKey]]) -> _Run:
        """The blocks from ``key`` on that differ in nothing, as one node without its children."""
        keys, looks = [key], self.looks[key]
        while len(following := children.get(keys[-1], [])) == 1:
            if self.looks[following[0]] != looks:
                break
            keys.append(following[0])
        node = CachedPrefix(
            id=_name(keys[-1]),
            tokens=len(keys) * self.block_size,
            hits=looks.hits,
            tiers=list(looks.tiers),
            tenants=[name for name in looks.tenants if name] if self.with_names else None,
            pinned_seconds=looks.pinned,
        )
        return _Run(keys, node, following)


def _name(key: BlockKey) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)
