"""The KV cache as the page draws it: one cell a block, and the tree of cached prefixes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from twostroke.core.request import BlockKey
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import BlockState, PrefixChain

MAX_CELLS = 32768
MAX_NODES = 512
GIVEN_BACK = -1  # in a table


class BlockCells(msgspec.Struct):
    """Blocks that hold or cache something, in order of their ids, a column each.

    Attributes:
        block: Their ids.
        owner: Index into ``BlockMap.owners``; -1 for free blocks.
        position: Where it is in the table of its owner; 0 without one.
        holders: Tables that hold it; of the caller's requests only.
        cached: 1 if a lookup by content can find it.
        age: Place in the order of eviction, 0 being the next to go; -1 if it is held.
    """

    block: list[int] = []
    owner: list[int] = []
    position: list[int] = []
    holders: list[int] = []
    cached: list[int] = []
    age: list[int] = []


class PrefixNode(msgspec.Struct):
    """Consecutive cached blocks that the same requests have in common.

    Attributes:
        parent: Index of the node before it, -1 at the root.
        blocks: How many blocks.
        requests: Known requests that begin so.
        found: How often a request found them when it came.
        held: How many of the blocks a running request holds now.
    """

    parent: int
    blocks: int
    requests: int
    found: int
    held: int


class BlockMap(msgspec.Struct):
    """The pool and the tree.

    Attributes:
        num_empty: Blocks without a cell: free ones without content, and all that is others'.
        left_out: Blocks beyond those that are shown.
        tokens_saved: Prompt tokens that known requests found in the cache.
    """

    num_blocks: int
    block_size: int
    num_empty: int
    owners: list[str]
    cells: BlockCells
    tree: list[PrefixNode]
    left_out: int = 0
    tokens_saved: int = 0


def draw_blocks(state: BlockState, visible: Visibility | None = None) -> BlockMap:
    """The cells and the tree; of other tenants' blocks nothing, not even how many there are."""
    owner_of: dict[int, tuple[int, int]] = {}
    owners: list[str] = []
    holders: Counter[int] = Counter()  # of others' blocks nothing: who shares one, has its prompt
    for request_id, table in state.tables.items():
        if visible is not None and not visible(request_id):
            continue
        holders.update(table)
        for position, block in enumerate(table):
            owner_of.setdefault(block, (len(owners), position))
        owners.append(request_id)
    owner_of.pop(GIVEN_BACK, None)
    cached = set(state.cached.values())
    age = {block: place for place, block in enumerate(state.free)}
    shown = sorted(owner_of.keys() | (cached if visible is None else ()))
    cells = BlockCells()
    for block in shown[:MAX_CELLS]:
        cells.block.append(block)
        owner, position = owner_of.get(block, (-1, 0))
        cells.owner.append(owner)
        cells.position.append(position)
        cells.holders.append(holders[block])
        cells.cached.append(int(block in cached))
        cells.age.append(age.get(block, -1))
    chains = [chain for chain in state.chains if visible is None or visible(chain.request_id)]
    return BlockMap(
        num_blocks=state.num_blocks,
        block_size=state.block_size,
        num_empty=state.num_blocks - len(shown),
        owners=owners,
        cells=cells,
        tree=_prefix_tree(chains, state.cached, holders),
        left_out=max(0, len(shown) - MAX_CELLS),
        tokens_saved=sum(chain.num_found for chain in chains) * state.block_size,
    )


@dataclass(slots=True)
class _Node:
    children: dict[BlockKey, _Node] = field(default_factory=dict)
    requests: int = 0
    found: int = 0
    held: int = 0


def _prefix_tree(
    chains: list[PrefixChain], cached: dict[BlockKey, int], holders: Counter[int]
) -> list[PrefixNode]:
    root = _Node()
    for chain in chains:
        node = root
        for position, key in enumerate(chain.keys):
            block = cached.get(key)
            if block is None:
                break
            node = node.children.setdefault(key, _Node())
            node.requests += 1
            node.found += position < chain.num_found
            node.held = int(holders[block] > 0)
    nodes: list[PrefixNode] = []
    waiting = [(-1, child) for child in _by_size(root)]
    while waiting and len(nodes) < MAX_NODES:
        parent, node = waiting.pop(0)
        blocks, held = 1, node.held
        while len(node.children) == 1:
            (child,) = node.children.values()
            if (child.requests, child.found) != (node.requests, node.found):
                break
            node, blocks, held = child, blocks + 1, held + child.held
        nodes.append(PrefixNode(parent, blocks, node.requests, node.found, held))
        waiting += [(len(nodes) - 1, child) for child in _by_size(node)]
    return nodes


def _by_size(node: _Node) -> list[_Node]:
    return sorted(node.children.values(), key=lambda child: -child.requests)
