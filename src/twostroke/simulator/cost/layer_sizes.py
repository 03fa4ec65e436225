"""What a layer computes on one device beside its attention, as the cost model counts it."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Parallel

# Passes over a token's values in one layer. Norms: two, each reads and writes hidden state and
# residual. Rotation and cache write: over queries, keys, values. Activation: over gate and up.
NORM_PASSES, ROTATION_PASSES, ACTIVATION_PASSES = 8, 2, 1.5
ELEMENTWISE_KERNELS, ROUTING_KERNELS = 5, 4
# Products whose outputs are rotated, and those whose outputs go through the activation.
ROTATED, ACTIVATED = ("qkv", "query_kv_down", "state_input"), ("gate_up", "mlp_up", "expert_up")


class LayerSizes(NamedTuple):
    """A layer beside its attention, on one rank; products are (outputs, inputs, quantised).

    Attributes:
        experts: The products of one expert.
        width: Elements that pass through memory between the products, for each token.
        activated: Likewise, between the products of experts.
    """

    linears: list[tuple[int, int, bool]]
    experts: list[tuple[int, int, bool]]
    width: int
    activated: int
    kernels: int

    def elementwise(self, grouped: bool) -> tuple[int, int]:
        """Width and kernels between the products; those of ``grouped`` experts are theirs."""
        if grouped or not self.experts:
            return self.width, self.kernels
        return self.width + self.activated, self.kernels + ROUTING_KERNELS


def merged_layers(model: ModelSpec) -> list[LayerSpec]:
    """Kinds of layers, each with how many there are; models that alternate have few."""
    counts: dict[LayerSpec, int] = {}
    for layer in model.layers:
        kind = replace(layer, count=1)
        counts[kind] = counts.get(kind, 0) + layer.count
    return [replace(kind, count=count) for kind, count in counts.items()]


def sizes_of(layer: LayerSpec, hidden_size: int, parallel: Parallel) -> LayerSizes:
    """A layer's share on one device."""
    linears = [(*linear.on_rank(parallel.tensor), linear.quantised) for linear in layer.linears]
    of_experts = layer.experts.linears if layer.experts else ()
    parts = parallel.parts_of_expert
    experts = [(*linear.on_rank(parts), linear.quantised) for linear in of_experts]
    share = layer.branches / 2
    width = round(share * NORM_PASSES) * hidden_size
    named = [(linear.name, size[0]) for size, linear in zip(linears, layer.linears)]
    width += ROTATION_PASSES * sum(outputs for name, outputs in named if name in ROTATED)
    inner = sum(outputs for name, outputs in named if name.endswith(ACTIVATED))
    width += round(ACTIVATION_PASSES * inner)
    activated = 0
    if layer.experts:  # of its group's tokens a device has an equal share, however they are split
        outputs = of_experts[0].on_rank(parallel.tensor)[0]
        activated = round(ACTIVATION_PASSES * layer.experts.per_token * outputs)
    return LayerSizes(linears, experts, width, activated, ceil(share * ELEMENTWISE_KERNELS))
