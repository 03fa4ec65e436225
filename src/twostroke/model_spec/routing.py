"""How a mixture of experts chooses among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """How a router's scores choose experts, and weigh what they compute.

    Attributes:
        scores: What becomes of the router's outputs: the softmax over all experts, or each one's
            sigmoid.
        normalized: Whether the weights of a token's experts are divided by their sum.
        scale: Weights are multiplied with it at last.
        corrected: Whether a bias is added to the scores by which experts are chosen.
        groups: Experts are chosen in the best ``chosen_groups`` of these groups of equal size.
        scales_inputs: Weights are those of what an expert reads, not of what it gives.
        best_two: Groups are compared by their two best scores together, otherwise by the best one.
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    scale: float = 1.0
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    best_two: bool = False
    scales_inputs: bool = False
