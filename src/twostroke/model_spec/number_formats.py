"""Number formats of weights and caches: how many bytes a value takes, and what products are
computed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twostroke.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How linear layers are stored.

    Attributes:
        bits: Of one weight, with its share of the scales.
        compute: Format that products run in, where the hardware has it.
    """

    name: str
    bits: float
    compute: str


# Scales: float16 and a 4-bit zero per 128 weights (int4); one byte per 16 (nvfp4) or 32 (mxfp4)
# weights; one float32 per block of 128 by 128 (fp8_block). One scale per row or tensor is too
# little to count.
WEIGHT_FORMATS = {
    "fp32": WeightFormat("fp32", 32, "fp32"),
    "bf16": WeightFormat("bf16", 16, "bf16"),
    "fp8": WeightFormat("fp8", 8, "fp8"),
    "fp8_block": WeightFormat("fp8_block", 8 + 32 / 128**2, "fp8"),
    "int8": WeightFormat("int8", 8, "int8"),
    "int4": WeightFormat("int4", 4 + 20 / 128, "bf16"),
    "nvfp4": WeightFormat("nvfp4", 4 + 8 / 16, "fp4"),
    "mxfp4": WeightFormat("mxfp4", 4 + 8 / 32, "fp4"),
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
CACHE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}


def weight_format(name: str) -> WeightFormat:
    """Look a format up by its name or by that of the dtype (``bfloat16``, ``auto``). Raises
    ConfigError.
    """
    found = WEIGHT_FORMATS.get(_SAME.get(name, name))
    if found is None:
        known = ", ".join(WEIGHT_FORMATS)
        raise ConfigError(
            f"unknown weight format {name!r}", hint=f"--weight-dtype takes another; known: {known}"
        )
    return found


def cache_bytes(name: str) -> float:
    """Bytes of one key or value in the cache. Raises ConfigError."""
    found = CACHE_BYTES.get(_SAME.get(name, name))
    if found is None:
        raise ConfigError(
            f"unknown KV cache format {name!r}", hint="known: auto, " + ", ".join(CACHE_BYTES)
        )
    return found


def stored_format(raw: Mapping[str, Any]) -> str:
    """The weight format that a ``config.json`` states: its ``quantization_config``, or else its
    dtype.

    One that is not known here is given in its own words: nobody needs it who asks for another
    (``weight_format`` refuses it).
    """
    quantization = raw.get("quantization_config") or raw.get("compression_config") or {}
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
        return "nvfp4" if "FP4" in str(quantization.get("quant_algo", method)).upper() else "fp8"
    bits = quantization.get("bits")
    if method == "compressed-tensors":
        bits, kind = _group_of(quantization)
        if kind == "float" and bits in (4, 8):
            return "fp8" if bits == 8 else "nvfp4"
    elif method == "bitsandbytes":
        bits = 8 if quantization.get("load_in_8bit") else 4
    return f"int{bits}" if bits in (4, 8) else f"{method or 'quantised'} with {str(bits)[:40]} bits"


def _group_of(quantization: Mapping[str, Any]) -> tuple[object, object]:
    """Bits and type of weights in the first group of a compressed-tensors file, as far as it
    says.
    """
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    return (
        (weights.get("num_bits"), weights.get("type"))
        if isinstance(weights, Mapping)
        else (None, None)
    )
