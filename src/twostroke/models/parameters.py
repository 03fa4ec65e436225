"""The tensors of a model in terms of those in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from twostroke.layers.linear import Linear
from twostroke.layers.stored_blocks import KeptWeight


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the model, and the checkpoint's tensors that are stacked to make it.

    Attributes:
        parts: (name, shape) of each, stacked along the first dimension.
        is_bytes: They are bytes, which stay what they are in a model of whichever precision.
        sections: Sizes of what lies side by side in one part (query, key and value); a process that
            has a share of the model has a share of each.
    """

    name: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    is_bytes: bool = False
    sections: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(shape[0] for _, shape in self.parts)
        return (rows, *self.parts[0][1][1:])

    def under(self, name: str, checkpoint: str) -> Parameter:
        """This parameter with ``name`` before its name, ``checkpoint`` before its parts' names."""
        parts = tuple((checkpoint + part, shape) for part, shape in self.parts)
        return replace(self, name=name + self.name, parts=parts)


class ParameterSource(Protocol):
    """Where a model takes its parameters from, each once; a dictionary of tensors is one."""

    def __contains__(self, name: str) -> bool: ...

    def pop(self, name: str) -> Tensor: ...


@runtime_checkable
class KeptSource(Protocol):
    """One that may hold weights in formats that kernels multiply with."""

    def pop_kept(self, name: str, *, whole: bool) -> list[KeptWeight]:
        """The weight of a linear layer as it is stored, one after the other where formats differ.

        Empty if it must be decoded: then it is still there.

        Args:
            whole: It must be of one format.
        """
        ...


@runtime_checkable
class AdaptableSource(Protocol):
    """One whose linear layers may get additions after the model is built."""

    def adaptable(self, name: str, linear: Linear, order: Tensor | None) -> Linear:
        """The layer of that name, such as ``0.qkv``, or what adds to its outputs.

        Args:
            order: The order of its outputs, where it is not the checkpoint's.
        """
        ...


def take_kept(source: ParameterSource, name: str, *, whole: bool) -> list[KeptWeight]:
    """Take a weight that can stay as it is stored, see ``KeptSource``; else it is still there."""
    return source.pop_kept(name, whole=whole) if isinstance(source, KeptSource) else []


def linear_parameters(
    name: str,
    outputs: Sequence[tuple[str, int]],
    inputs: int,
    bias: bool,
    sections: tuple[int, ...] = (),
) -> list[Parameter]:
    """Weight and bias of a linear layer.

    Args:
        outputs: The checkpoint's linear layers that it consists of, and the outputs of each.
        sections: See ``Parameter``.
    """
    weights = tuple((f"{part}.weight", (rows, inputs)) for part, rows in outputs)
    biases = tuple((f"{part}.bias", (rows,)) for part, rows in outputs)
    parameters = [Parameter(f"{name}.weight", weights, sections=sections)]
    if bias:
        parameters.append(Parameter(f"{name}.bias", biases, sections=sections))
    return parameters


def vector_parameter(name: str, part: str, size: int) -> Parameter:
    """The weight of a norm."""
    return Parameter(name, ((f"{part}.weight", (size,)),))
