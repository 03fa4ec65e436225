"""How memory is divided between KV blocks and slots of recurrent state."""

from __future__ import annotations

from typing import NamedTuple


class StateSize(NamedTuple):
    """What recurrent layers keep of a request.

    Attributes:
        num_bytes: Of one state; 0 where there are no such layers.
        spacing: Blocks between two checkpoints that are kept; ``None``: none are made.
    """

    num_bytes: int = 0
    spacing: int | None = 1

    @property
    def per_block(self) -> float:
        """Bytes of checkpoints that come with a block."""
        return 0.0 if self.spacing is None else self.num_bytes / self.spacing


NO_STATE = StateSize()


class CacheSize(NamedTuple):
    """KV blocks, and slots of recurrent state."""

    num_blocks: int
    num_slots: int


def divide_room(
    budget: float, block_bytes: float, state: StateSize, max_num_seqs: int
) -> CacheSize:
    """What fits into ``budget`` bytes.

    States of running requests take at most half; of the rest, each ``spacing`` blocks come with a
    slot for a checkpoint.
    """
    num_running = 0
    if state.num_bytes:
        num_running = max(1, min(max_num_seqs, int(budget // 2 // state.num_bytes)))
    rest = max(budget - num_running * state.num_bytes, 0)
    num_blocks = int(rest // (block_bytes + state.per_block))
    num_kept = 0 if state.spacing is None else num_blocks // state.spacing
    return CacheSize(num_blocks, num_running + num_kept if num_running else 0)
