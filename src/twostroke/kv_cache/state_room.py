"""How memory is divided between KV blocks and slots of recurrent state."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.config import CacheConfig
from twostroke.core.speculation_config import Speculation

MIN_SLOTS = 3


class StateSize(NamedTuple):
    """What recurrent layers keep of a request.

    Attributes:
        num_bytes: Bytes of one state; 0 where there are no such layers.
        spacing: Blocks between two checkpoints that are kept; ``None``: none are made.
        num_drafts: Most drafts of a request in one step, each of which leaves a state.
    """

    num_bytes: int = 0
    spacing: int | None = 1
    num_drafts: int = 0

    @property
    def num_scratch(self) -> int:
        """Slots that one request's drafts take; others' take what checkpoints leave."""
        return self.num_drafts + 1 if self.num_drafts and self.num_bytes else 0

    @property
    def per_block(self) -> float:
        """Bytes of checkpoints that come with a block."""
        return 0.0 if self.spacing is None else self.num_bytes / self.spacing


NO_STATE = StateSize()


class CacheSize(NamedTuple):
    """KV blocks, and slots of recurrent state."""

    num_blocks: int
    num_slots: int


def count_state_parts(state_bytes: float, block_bytes: float) -> int:
    """Blocks' sizes that a state takes in tiers; none of a model without blocks that have bytes."""
    return int(-(-state_bytes // block_bytes)) if block_bytes else 0


def state_spacing(state_bytes: int, block_bytes: int) -> int:
    """Blocks between kept checkpoints: each takes at most what the blocks since then do."""
    return max(1, -(-state_bytes // max(1, block_bytes)))


def state_size(
    config: CacheConfig,
    state_bytes: int,
    kv_bytes_per_token: int,
    speculation: Speculation | None = None,
) -> StateSize:
    """The size of recurrent state and the spacing of its checkpoints, as configured."""
    num_drafts = 0 if speculation is None else speculation.num_speculative_tokens
    if not config.enable_prefix_caching:
        return StateSize(state_bytes, None, num_drafts)
    by_bytes = state_spacing(state_bytes, config.block_size * kv_bytes_per_token)
    return StateSize(state_bytes, config.state_spacing or by_bytes, num_drafts)


def divide_room(
    budget: float, block_bytes: float, state: StateSize, max_num_seqs: int
) -> CacheSize:
    """What fits into ``budget`` bytes.

    States of running requests take at most half; of the rest, each ``spacing`` blocks come with a
    slot for a checkpoint. There are three slots at least: of an answer that has a form, and of the
    checkpoint that it starts from.
    """
    num_running = 0
    if state.num_bytes:
        num_running = max(1, min(max_num_seqs, int(budget // 2 // state.num_bytes)))
    num_own = num_running + state.num_scratch
    rest = max(budget - num_own * state.num_bytes, 0)
    num_blocks = int(rest // (block_bytes + state.per_block))
    num_kept = 0 if state.spacing is None else num_blocks // state.spacing
    return CacheSize(num_blocks, max(MIN_SLOTS, num_own + num_kept) if num_running else 0)
