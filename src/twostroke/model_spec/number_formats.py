"""Number formats of weights and caches: their exact bits, and what products are computed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How elements are stored.

    Attributes:
        element_bits: Bits of one element: 4 is half a byte.
        compute: Format that products run in, where the hardware has it.
        scale_bits: Bits of the scale (and offset) that ``group`` elements share; 0 if one scale
            serves so many elements that it is negligible.
    """

    name: str
    element_bits: int
    compute: str
    scale_bits: int = 0
    group: int = 1

    @property
    def bits(self) -> float:
        """Bits of one element, its share of the scale included."""
        return self.element_bits + self.scale_bits / self.group

    def bits_of(self, elements: int) -> int:
        """Bits of ``elements`` in a row; a last group that is not full has a whole scale."""
        return elements * self.element_bits + -(-elements // self.group) * self.scale_bits


# Scales: float16 and a 4-bit zero per 128 weights (int4), float16 per 32 (int4_g32); one byte per
# 16 (nvfp4) or 32 (mxfp4) weights; one float32 per block of 128 by 128 (fp8_block).
_FORMATS = (
    NumberFormat("fp32", 32, "fp32"),
    NumberFormat("bf16", 16, "bf16"),
    NumberFormat("fp8", 8, "fp8"),
    NumberFormat("fp8_block", 8, "fp8", scale_bits=32, group=128**2),
    NumberFormat("int8", 8, "int8"),
    NumberFormat("int4", 4, "bf16", scale_bits=20, group=128),
    NumberFormat("int4_g32", 4, "bf16", scale_bits=16, group=32),
    NumberFormat("nvfp4", 4, "fp4", scale_bits=8, group=16),
    NumberFormat("mxfp4", 4, "fp4", scale_bits=8, group=32),
)
# Keys of an index that finds the tokens of sparse attention: one float32 for each.
INDEX_FORMAT = NumberFormat("fp8_index", 8, "fp8", scale_bits=32, group=128)
WEIGHT_FORMATS = {format_.name: format_ for format_ in _FORMATS}
# Of keys and values: a bfloat16 scale per token and KV head, in 4 bits per 32 elements of it.
_ONE_SCALE = 2**31
CACHE_FORMATS = {
    "fp32": WEIGHT_FORMATS["fp32"],
    "bf16": WEIGHT_FORMATS["bf16"],
    "fp8": WEIGHT_FORMATS["fp8"],
    "int8": NumberFormat("int8", 8, "int8", scale_bits=16, group=_ONE_SCALE),
    "int4": NumberFormat("int4", 4, "bf16", scale_bits=16, group=32),
}
_SAME = {
    "auto": "bf16",
    "float32": "fp32",
    "float16": "bf16",
    "fp16": "bf16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp4": "nvfp4",
    "awq": "int4",
    "gptq": "int4",
}


# Parts of ModelOpt's names of algorithms, the first that is there counts.
_MODELOPT = {
    "MXFP4": "mxfp4",
    "FP4": "nvfp4",
    "INT4": "int4",
    "W4A": "int4",
    "FP8_PB": "fp8_block",
    "FP8": "fp8",
    "INT8": "int8",
    "W8A": "int8",
}


def weight_format(name: str) -> NumberFormat:
    """A format by its name or by that of a dtype (``bfloat16``, ``auto``). Raises ConfigError."""
    format_ = WEIGHT_FORMATS.get(_SAME.get(name, name))
    if format_ is None:
        names = ", ".join(WEIGHT_FORMATS)
        raise ConfigError(
            f"unknown weight format {name!r}", hint=f"--weight-dtype takes another; known: {names}"
        )
    return format_


def cache_format(name: str) -> NumberFormat:
    """A format of keys and values by its name or by that of a dtype. Raises ConfigError."""
    format_ = CACHE_FORMATS.get(_SAME.get(name, name))
    if format_ is None:
        raise ConfigError(
            f"unknown KV cache format {name!r}", hint="known: auto, " + ", ".join(CACHE_FORMATS)
        )
    return format_


def stored_format(raw: Mapping[str, Any]) -> str:
    """The weight format that a ``config.json`` states by its quantization or its dtype.

    An unknown one is given in the file's words: only ``weight_format`` refuses it, and another
    format may be asked for.
    """
    quantization = stated_quantization(raw)
    if not isinstance(quantization, Mapping):
        return f"a quantization_config that is no object ({str(quantization)[:40]})"
    if not quantization:
        dtype = raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"
        return _SAME.get(str(dtype), str(dtype)[:40])
    method = str(quantization.get("quant_method", ""))[:40]
    if method == "fp8":
        return "fp8_block" if quantization.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("modelopt", "modelopt_fp4", "nvfp4"):
        return _of_modelopt(quantization, method)
    bits, group = quantization.get("bits"), quantization.get("group_size")
    if method == "compressed-tensors":
        weights = _weights_of_most(quantization)
        bits, group = weights.get("num_bits"), weights.get("group_size")
        if weights.get("type") == "float" and bits in (4, 8):
            few = "mxfp4" if "mxfp4" in str(quantization.get("format")) else "nvfp4"
            return "fp8" if bits == 8 else few
    elif method == "bitsandbytes":
        bits, group = 8 if quantization.get("load_in_8bit") else 4, None
    if bits == 4 and group == 32:
        return "int4_g32"
    return f"int{bits}" if bits in (4, 8) else f"{method or 'quantised'} with {str(bits)[:40]} bits"


def _of_modelopt(quantization: Mapping[str, Any], method: str) -> str:
    """The format of ModelOpt's algorithm; of several, that of most modules."""
    algorithm = quantization.get("quant_algo") or method
    layers = quantization.get("quantized_layers")
    if isinstance(layers, Mapping):
        named = [each.get("quant_algo") for each in layers.values() if isinstance(each, Mapping)]
        algorithm = Counter(map(str, named)).most_common(1)[0][0] if named else algorithm
    name = str(algorithm)[:40].upper()
    for part, format_ in _MODELOPT.items():
        if part in name:
            return format_
    return "fp8" if name == "MODELOPT" else f"modelopt's {name}"


def stated_quantization(raw: Mapping[str, Any]) -> object:
    """What a ``config.json`` says of its quantization; empty if nothing."""
    return raw.get("quantization_config") or raw.get("compression_config") or {}


def _weights_of_most(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a compressed-tensors file says of the weights in the group of the fewest bits.

    Files that mix formats give the fewest to the experts or the MLP, which are most of a model.
    """
    groups = quantization.get("config_groups")
    listed = groups.values() if isinstance(groups, Mapping) else ()
    weights = [group.get("weights") for group in listed if isinstance(group, Mapping)]
    given = [each for each in weights if isinstance(each, Mapping)]
    stated = [each for each in given if isinstance(each.get("num_bits"), int)]
    return min(stated, key=lambda each: int(each["num_bits"]), default=given[0] if given else {})
