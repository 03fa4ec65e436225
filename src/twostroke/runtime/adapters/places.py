"""Which linear layers of a model an adapter may add to, and where its modules lie in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from twostroke.layers.compiled.decoder_pass import ADAPTED_LINEARS
from twostroke.layers.linear import Linear
from twostroke.layers.low_rank import AdaptedLinear, PassAdditions
from twostroke.models.parameters import Parameter

# What comes before "layers." depends on the class that a model was saved from.
_PREFIX = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?(?=layers\.\d)")


class ModuleRows(NamedTuple):
    """The rows of a layer's outputs that one of the checkpoint's modules has."""

    first: int
    size: int


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """A linear layer that may be added to.

    Attributes:
        parts: By modules' names, see ``module_name``.
        order: The order of the outputs, where it is not the checkpoint's.
    """

    name: str
    linear: Linear
    inputs: int
    outputs: int
    parts: dict[str, ModuleRows]
    order: Tensor | None


class AdapterPlaces:
    """The places of one model, noted while it is built.

    Attributes:
        additions: What all of them add to a pass.
        by_module: The place that a module lies in.
    """

    def __init__(self) -> None:
        self.additions = PassAdditions()
        self.by_module: dict[str, AdapterPlace] = {}
        self._weights: dict[str, Parameter] = {}

    def expect(self, parameters: Sequence[Parameter]) -> None:
        """Take in what the model will be built of."""
        self._weights = {one.name: one for one in parameters if one.name.endswith(".weight")}

    def adaptable(self, name: str, linear: Linear, order: Tensor | None) -> Linear:
        """The layer of that name, such as ``0.qkv``; with additions, if it may have some."""
        weight = self._weights.get(f"{name}.weight")
        if weight is None or name.partition(".")[2] not in ADAPTED_LINEARS:
            return linear
        parts, first = dict[str, ModuleRows](), 0
        for stored, (rows, *_) in weight.parts:
            parts[module_name(stored.removesuffix(".weight"))] = ModuleRows(first, rows)
            first += rows
        outputs, inputs = weight.shape
        place = AdapterPlace(name, linear, inputs, outputs, parts, order)
        self.by_module.update(dict.fromkeys(parts, place))
        return AdaptedLinear(linear, name, self.additions)


def module_name(name: str) -> str:
    """A module's name from its layer on, whatever class it was saved from."""
    match = _PREFIX.match(name)
    return name if match is None else name[match.end() :]
