"""The formats of keys and values in the cache, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

KVCacheDtype = Literal["auto", "bfloat16", "float16", "float32", "int8", "int4", "fp8"]
# Of the matrices that recurrent layers keep of a request; "auto" is float32.
StateDtype = Literal["auto", "float32", "bfloat16"]
STATE_WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2}  # bytes of an element
# The same by other names, which vLLM or the simulator's reports use.
KVCacheDtypeName = Literal[KVCacheDtype, "bf16", "fp16", "fp32", "fp8_e4m3"]
FIRST_NAMES: Mapping[str, KVCacheDtype] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8_e4m3": "fp8",
}
