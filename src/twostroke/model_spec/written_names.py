"""Names of models as people write them: other owners, tunings, formats, spellings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# What says how a model was tuned or by which tool it was packed: that changes no shape.
_TUNING = ("instruct", "chat", "hf", "it", "pt", "base", "dynamic", "block", "kv", "unsloth", "bnb")
# What says in which format a copy keeps its weights, as a ``quantization_config`` states it.
_INT4: Mapping[str, Any] = {"quant_method": "awq", "bits": 4}
_INT8: Mapping[str, Any] = {"quant_method": "gptq", "bits": 8}
_NVFP4: Mapping[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("awq", "gptq", "int4", "4bit", "w4a16", "autoround"), _INT4),
    **dict.fromkeys(("int8", "8bit", "w8a8", "w8a16"), _INT8),
    **dict.fromkeys(("nvfp4", "fp4"), _NVFP4),
    "fp8": {"quant_method": "fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
    "bf16": {},
    "fp16": {},
}
_SEPARATOR = re.compile(r"[\s_:]+")
_BETWEEN = re.compile(r"(?<=[a-z])-(?=\d)")


class WrittenName(NamedTuple):
    """A name, taken apart.

    Attributes:
        key: Equal for all ways to write one model.
        quantization: What its last words say of the weights; ``None`` if nothing.
    """

    key: str
    quantization: Mapping[str, Any] | None


def read_written_name(name: str) -> WrittenName:
    """The key of a Hub id or a short name: ``RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8``.

    Of two words on the format the last one counts: ``GPTQ-Int8`` has eight bits.
    """
    text = _SEPARATOR.sub("-", name.strip().lower().rpartition("/")[2])
    words = text.removeprefix("meta-").split("-")
    quantization: Mapping[str, Any] | None = None
    while len(words) > 1:
        last = words[-1].removeprefix("quantized.")
        if last in _FORMATS:
            quantization = _FORMATS[last] if quantization is None else quantization
        elif last not in _TUNING:
            break
        words.pop()
    untuned = "-".join(word for word in words if word not in _TUNING)
    return WrittenName(_BETWEEN.sub("", untuned), quantization)
