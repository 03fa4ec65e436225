"""A model's weights part by part: what they are, their shapes, and the bytes that they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twostroke.model_spec.layer_specs import LayerSpec
from twostroke.model_spec.number_formats import NumberFormat


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Weights of one kind on one device.

    Attributes:
        run: Index into ``ModelSpec.layers``; ``None`` outside the layers.
        layers: How many layers have such a part; 1 outside them.
        group: What it belongs to: ``embedding``, ``attention``, ``recurrent``, ``mlp``,
            ``experts``, ``other`` (norms and the like) or ``head``.
        copies: How many of it one layer has: as many as experts, or one.
        inputs, outputs: Of the matrix; 0 where it is none.
        parameters: Parameters of one layer, over all copies.
        bits: Bits of one layer, over all copies, scales included.
    """

    run: int | None
    layers: int
    group: str
    name: str
    copies: int
    inputs: int
    outputs: int
    parameters: int
    bits: float

    @property
    def all_bits(self) -> float:
        """Bits of this part in all layers that have it."""
        return self.layers * self.bits


def layer_parts(
    run: int, layer: LayerSpec, stored: NumberFormat, plain: int, ranks: int
) -> Iterator[WeightPart]:
    """The parts of one run of equal layers; ``plain`` is the width of what is not quantised."""
    groups = (
        ("attention", 1, layer.attention.linears if layer.attention else ()),
        ("recurrent", 1, layer.recurrent.linears if layer.recurrent else ()),
        ("mlp", 1, layer.mlp.linears if layer.mlp else ()),
        ("experts", 1, layer.experts.shared if layer.experts else ()),
        (
            "experts",
            layer.experts.count if layer.experts else 0,
            layer.experts.linears if layer.experts else (),
        ),
        ("mlp", 1, layer.inputs.linears if layer.inputs else ()),
    )
    for group, copies, linears in groups:
        for linear in linears:
            outputs, inputs = linear.on_rank(ranks)
            width = stored.bits if linear.quantised else plain
            yield WeightPart(
                run=run,
                layers=layer.count,
                group=group,
                name=linear.name,
                copies=copies,
                inputs=inputs,
                outputs=outputs,
                parameters=copies * linear.rank_parameters(ranks),
                bits=copies * outputs * (inputs * width + linear.bias * plain),
            )
    other = layer.other_parameters
    yield plain_part(run, layer.count, "other", "norms", 0, 0, other, plain)


def plain_part(
    run: int | None,
    layers: int,
    group: str,
    name: str,
    inputs: int,
    outputs: int,
    parameters: int,
    plain: int,
) -> WeightPart:
    """One that is never quantised."""
    return WeightPart(
        run=run,
        layers=layers,
        group=group,
        name=name,
        copies=1,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        bits=parameters * plain,
    )
