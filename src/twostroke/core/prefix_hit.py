"""How far a prompt was found in the prefix cache of a model with recurrent layers, and why so far.

Blocks alone are no use to such a model: a hit ends where its state was kept, too.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec


class PrefixEnd(str, Enum):
    """Why a prefix hit was not longer.

    ``WHOLE_PROMPT``: it was as long as it can be; the last token is computed in any case.
    ``NO_CHECKPOINT``: further blocks were there, but no state was kept after the hit's end.
    ``CHECKPOINT_EVICTED``: further blocks were there, and a state of them had been evicted.
    ``NOT_LOADED``: further blocks and a state were in a tier, from where they were not loaded: to
    compute them was faster, or there was no room.
    ``BLOCK_EVICTED``: the next block had been there and was evicted.
    ``FIRST_TIME``: no request had the next block's tokens, or it is too long ago to know.
    ``NEW_SALT``: nor any of them with this ``cache_salt``; other salts are not looked at.
    """

    WHOLE_PROMPT = "whole_prompt"
    NO_CHECKPOINT = "no_checkpoint"
    CHECKPOINT_EVICTED = "checkpoint_evicted"
    NOT_LOADED = "not_loaded"
    BLOCK_EVICTED = "block_evicted"
    FIRST_TIME = "first_time"
    NEW_SALT = "new_salt"


class PrefixHit(msgspec.Struct, frozen=True):
    """What a request found when it was admitted first.

    Attributes:
        state_tokens: How many tokens blocks and a state covered: these were not computed.
        block_tokens: Up to where all blocks were there, in the cache or in tiers.
        end: Why there was no more.
    """

    state_tokens: int
    block_tokens: int
    end: PrefixEnd


class KVOffer(NamedTuple):
    """Another engine has computed the first ``num_tokens`` of a request, and offers their blocks.

    ``tier`` is where this engine fetches them, see ``TierInfo.loads_only``.
    """

    tier: str
    num_tokens: int
