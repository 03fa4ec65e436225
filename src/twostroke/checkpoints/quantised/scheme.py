"""What a quantised checkpoint's configuration says, in one form for all methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Which tensors a layer's weight consists of, and how bits lie in them; see ``unpack``.
Layout = Literal["plain", "packed", "gptq", "awq", "nvfp4"]
Strategy = Literal["tensor", "channel", "group", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the weights of linear layers are stored: as values, scales and zero points.

    Attributes:
        method: ``quant_method``.
        number: Values are integers of ``bits``, or floating point of 8 (E4M3) or 4 (E2M1).
        strategy: What shares a scale: a tensor, an output, a group of one output's inputs, a block.
        group: Inputs that share a scale, where the strategy is ``group``.
        block: Outputs and inputs that share a scale, where it is ``block``.
        symmetric: Integers have their zero in the middle; else, zero points are stored.
        act_order: Each input says which group it belongs to.
        stored_zero: What a stored zero point lacks: GPTQ's first format stores one less.
        values, scale, global_scale: Names of a layer's tensors; the last may be empty.
        divides: Scales are divided by the global scale, not multiplied with it.
        activations: What the method rounds activations to; empty if to nothing.
        ignored: Modules that are left alone, as far as their names are said in full.
    """

    method: str
    layout: Layout
    number: Literal["int", "float"] = "int"
    bits: int
    strategy: Strategy
    group: int = 0
    block: tuple[int, int] = (0, 0)
    symmetric: bool = True
    act_order: bool = False
    stored_zero: int = 0
    values: str
    scale: str
    global_scale: str = ""
    divides: bool = False
    activations: str = ""
    ignored: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """What people call it: ``gptq int4``."""
        number = "int" if self.number == "int" else "fp"
        return f"{self.method} {number}{self.bits}"
