"""The depth of speculation that a configuration names."""

from __future__ import annotations

from twostroke.core.speculation_config import Speculation
from twostroke.scheduling.adaptive_depth import AdaptiveDepth
from twostroke.scheduling.parts import DraftDepth
from twostroke.scheduling.plain_parts import NoDrafts
from twostroke.scheduling.speculation import FixedDepth


def choose_depth(speculation: Speculation | None) -> DraftDepth:
    """None without speculation; else fixed, or chosen at each step, as configured."""
    if speculation is None:
        return NoDrafts()
    most, needs_slots = speculation.num_speculative_tokens, speculation.writes_kv
    if speculation.adaptive:
        return AdaptiveDepth(
            most,
            needs_slots=needs_slots,
            reads_prompts=speculation.method == "draft",
            at_once=not speculation.writes_kv,
        )
    return FixedDepth(most, needs_slots=needs_slots)
