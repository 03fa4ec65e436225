"""What a layer consists of beside its attention, on one device."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from twostroke.model_spec.layer_specs import LayerSpec

# Passes over a token's values in one layer. Norms: two, each reads and writes hidden state and
# residual. Rotation and cache write: over queries, keys, values. Activation: over gate and up.
NORM_PASSES, ROTATION_PASSES, ACTIVATION_PASSES = 8, 2, 1.5
ELEMENTWISE_KERNELS, ROUTING_KERNELS, SAMPLING_KERNELS = 5, 4, 6
# Products whose outputs are rotated, and those whose outputs go through the activation.
ROTATED, ACTIVATED = ("qkv", "query_kv_down", "state_input"), ("gate_up", "mlp_up", "expert_up")


class LayerSizes(NamedTuple):
    """A layer beside its attention, on one rank; products are (outputs, inputs, quantised)."""

    linears: list[tuple[int, int, bool]]
    experts: list[tuple[int, int, bool]]  # of one expert
    width: int  # elements that pass through memory between the products, for each token
    kernels: int


def layer_sizes(layer: LayerSpec, ranks: int, hidden_size: int) -> LayerSizes:
    """What one of ``ranks`` devices has of a layer beside its attention."""
    linears = [(*linear.on_rank(ranks), linear.quantised) for linear in layer.linears]
    of_experts = layer.experts.linears if layer.experts else ()
    experts = [(*linear.on_rank(ranks), linear.quantised) for linear in of_experts]
    share = layer.branches / 2
    width = round(share * NORM_PASSES) * hidden_size
    named = [(linear.name, size[0]) for size, linear in zip(linears, layer.linears)]
    width += ROTATION_PASSES * sum(outputs for name, outputs in named if name in ROTATED)
    inner = sum(outputs for name, outputs in named if name.endswith(ACTIVATED))
    kernels = ceil(share * ELEMENTWISE_KERNELS)
    if layer.experts:
        inner += layer.experts.per_token * experts[0][0]
        kernels += ROUTING_KERNELS
    width += round(ACTIVATION_PASSES * inner)
    return LayerSizes(linears, experts, width, kernels)
