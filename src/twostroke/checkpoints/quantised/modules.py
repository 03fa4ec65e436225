"""The tensors of quantised linear layers joined: to those who load, each is one weight again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.quantised.arrays import is_real
from twostroke.checkpoints.quantised.scheme import Scheme
from twostroke.core.errors import ModelLoadError

# Scales of what is not rounded here: activations, keys, values.
_UNUSED = (
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "output_zero_point",
)
_UNUSED_OF_CACHE = ("q_scale", "k_scale", "v_scale", "k_zero_point", "v_zero_point")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedTensor(StoredTensor):
    """A weight ``[outputs, inputs]`` that several tensors make; its own bytes are of the values.

    Attributes:
        name: What the tensor that holds the values is called, for messages.
        parts: The others by role: ``scale``, and maybe ``global_scale``, ``zeros``, ``order``.
        part_names: What these are called.
        nbytes: Bytes of all together.
    """

    name: str
    scheme: Scheme
    values: StoredTensor
    parts: Mapping[str, StoredTensor] = field(default_factory=dict)
    part_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """Scales of an output."""
        return _groups(self.scheme, self.shape[1])

    def refuse(self, role: str, what: str) -> ModelLoadError:
        """An error that names the tensor of that role."""
        return _refusal(self.part_names.get(role, self.name), self.path.name, what)


class _Role(NamedTuple):
    """A tensor beside the values: its name, its shapes, its formats (empty: real numbers)."""

    suffix: str
    shapes: tuple[tuple[int, ...], ...]
    formats: tuple[str, ...] = ()
    is_optional: bool = False


def join_quantised(tensors: Mapping[str, StoredTensor], scheme: Scheme) -> dict[str, StoredTensor]:
    """All tensors, those of each quantised layer as one called ``weight``.

    Scales of activations and of the KV cache are left out; whatever else is not used stays, and is
    refused by name when it is compared with the model.

    Raises:
        ModelLoadError: A tensor is missing, or has a shape or a type that the scheme does not have.
    """
    joined, used = dict[str, StoredTensor](), set[str]()
    for name, stored in tensors.items():
        base, _, last = name.rpartition(".")
        if last == scheme.values and stored.format in _FORMATS_OF_VALUES[scheme.layout]:
            weight = _join(base, stored, tensors, scheme)
            joined[f"{base}.weight"] = weight
            used |= {name, *weight.part_names.values()}
            used |= {f"{base}.{unused}" for unused in _UNUSED}
            if scheme.layout == "packed":
                used.add(f"{base}.weight_shape")
        elif last in _UNUSED_OF_CACHE:
            used.add(name)
    rest = {name: stored for name, stored in tensors.items() if name not in used}
    for name in rest.keys() & joined.keys():
        raise _refusal(name, rest[name].path.name, "is there, and quantised as well")
    return {**rest, **joined}


_FORMATS_OF_VALUES = {
    "plain": ("I8", "F8_E4M3"),
    "packed": ("I32",),
    "gptq": ("I32",),
    "awq": ("I32",),
    "nvfp4": ("U8",),
}


def _join(
    base: str, values: StoredTensor, tensors: Mapping[str, StoredTensor], scheme: Scheme
) -> QuantisedTensor:
    name = f"{base}.{scheme.values}"
    if base in scheme.ignored:
        raise _refusal(name, values.path.name, "is quantised, and config.json says it is not")
    wanted = "I8" if scheme.number == "int" else "F8_E4M3"
    if scheme.layout == "plain" and values.format != wanted:
        raise _refusal(name, values.path.name, f"is stored as {values.format}, expected {wanted}")
    if len(values.shape) != 2 or 0 in values.shape:
        raise _refusal(name, values.path.name, f"has shape {values.shape}, expected a matrix")
    shape = _shape(base, values, tensors, scheme)
    parts, names = dict[str, StoredTensor](), dict[str, str]()
    for role, (suffix, shapes, formats, is_optional) in _roles(scheme, shape).items():
        own = f"{base}.{suffix}"
        if role == "scale" and own not in tensors and scheme.layout == "plain":
            other = {"weight_scale": "weight_scale_inv", "weight_scale_inv": "weight_scale"}
            own = f"{base}.{other[suffix]}" if f"{base}.{other[suffix]}" in tensors else own
        stored = tensors.get(own)
        if stored is None:
            if is_optional:
                continue
            raise _refusal(own, values.path.name, f"is missing, which {name} needs")
        if stored.shape not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise _refusal(own, stored.path.name, f"has shape {stored.shape}, expected {expected}")
        if not (stored.format in formats if formats else is_real(stored)):
            raise _refusal(own, stored.path.name, f"is stored as {stored.format}, not supported")
        parts[role], names[role] = stored, own
    return QuantisedTensor(
        format=scheme.label,
        shape=shape,
        path=values.path,
        offset=values.offset,
        nbytes=values.nbytes + sum(part.nbytes for part in parts.values()),
        name=name,
        scheme=scheme,
        values=values,
        parts=parts,
        part_names=names,
    )


def _shape(
    base: str, values: StoredTensor, tensors: Mapping[str, StoredTensor], scheme: Scheme
) -> tuple[int, int]:
    """Outputs and inputs of the weight."""
    rows, columns = values.shape
    per_word = 32 // scheme.bits
    if scheme.layout == "plain":
        return rows, columns
    if scheme.layout == "nvfp4":
        return rows, 2 * columns
    if scheme.layout == "gptq":
        return columns, per_word * rows
    if scheme.layout == "awq":
        return per_word * columns, rows
    name = f"{base}.weight_shape"  # of "packed", whose last word may not be full
    stored = tensors.get(name)
    if stored is None:
        raise _refusal(name, values.path.name, f"is missing, which {base}.weight_packed needs")
    if stored.shape != (2,) or stored.format not in ("I64", "I32"):
        raise _refusal(name, stored.path.name, f"is {stored.format} of shape {stored.shape}")
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        sizes = np.frombuffer(file.read(stored.nbytes), f"<i{stored.nbytes // 2}").tolist()
    outputs, inputs = int(sizes[0]), int(sizes[1])
    if (outputs, -(-inputs // per_word)) != (rows, columns):
        raise _refusal(
            name, stored.path.name, f"says {sizes}, but {base}.weight_packed is {values.shape}"
        )
    return outputs, inputs


def _roles(scheme: Scheme, shape: tuple[int, int]) -> dict[str, _Role]:
    """What must lie beside the values of a weight of that shape."""
    (outputs, inputs), groups, words = shape, _groups(scheme, shape[1]), 32 // scheme.bits
    if scheme.layout in ("gptq", "awq"):
        zeros = _Role("qzeros", ((groups, -(-outputs // words)),), ("I32",))
        roles = {"scale": _Role("scales", ((groups, outputs),)), "zeros": zeros}
        if scheme.layout == "gptq":
            optional = not scheme.act_order
            roles["order"] = _Role("g_idx", ((inputs,),), ("I32", "I64"), optional)
        return roles
    one = ((), (1,), (1, 1))
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "tensor": one,
        "channel": ((outputs, 1), (outputs,)),
        "group": ((outputs, groups),),
        "block": ((-(-outputs // max(scheme.block[0], 1)), groups),),
    }
    roles = {"scale": _Role(scheme.scale, shapes[scheme.strategy])}
    if scheme.global_scale:
        roles["global_scale"] = _Role(scheme.global_scale, one)
    if not scheme.symmetric:
        packed = (-(-outputs // words), groups)
        in_words = scheme.layout == "packed" and scheme.strategy in ("channel", "group")
        roles["zeros"] = _Role(
            "weight_zero_point",
            (packed,) if in_words else shapes[scheme.strategy],
            ("I32",) if in_words else ("I8",),
        )
    if scheme.layout in ("packed", "plain") and scheme.number == "int":
        optional = not scheme.act_order
        roles["order"] = _Role("weight_g_idx", ((inputs,),), ("I32", "I64"), optional)
    return roles


def _groups(scheme: Scheme, inputs: int) -> int:
    size = {"group": scheme.group, "block": scheme.block[1]}.get(scheme.strategy, inputs)
    return math.ceil(inputs / size)


def _refusal(name: str, file: str, what: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} in {file} {what}",
        hint="quantization_config and the weights do not belong together, or it is incomplete",
    )
