"""Reads the public measurements.

They are no part of the project: without them these scripts say so and end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

_Row = TypeVar("_Row")

# Without the variable nothing is looked for: a folder of this name is not there.
DATA = Path(os.environ.get("TWOSTROKE_DATA", "$TWOSTROKE_DATA")) / "measured"
# Devices in the data, by the name of their hardware sheet.
DEVICES = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "l40s": "l40s",
    "b200": "b200_sxm",
}
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class GemmRow:
    format: str
    rows: int
    outputs: int
    inputs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """``tokens``: context length (decode) or prompt length (prefill)."""

    batch: int
    heads: int
    kv_heads: int
    dim: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AllReduceRow:
    ranks: int
    size: int  # bytes
    seconds: float


def present(folder: Path = DATA) -> bool:
    return (folder / "aiconfigurator").is_dir()


def every_nth(rows: Sequence[_Row], step: int, kind: Callable[[_Row], object]) -> list[_Row]:
    """The first and each ``step``-th row after it of each kind, in an order drawn at random.

    The order is always the same. Rows come back in the order in which they were given.
    """
    places = list(range(len(rows)))
    Random(0).shuffle(places)
    seen: dict[object, int] = {}
    chosen = set()
    for place in places:
        number = seen.setdefault(kind(rows[place]), 0)
        seen[kind(rows[place])] = number + 1
        if number % step == 0:
            chosen.add(place)
    return [rows[place] for place in sorted(chosen)]


@cache
def columns(device: str, operation: str) -> dict[str, list[object]]:
    """A file's columns; an operation as TensorRT-LLM runs it is named ``trtllm-`` and so on."""
    from pyarrow import parquet

    path = DATA / "aiconfigurator" / f"{DEVICES[device]}-{operation}_perf.parquet"
    table = parquet.read_table(path)
    by_name: dict[str, list[object]] = table.to_pydict()
    return by_name


def _records(device: str, operation: str) -> Iterator[dict[str, object]]:
    by_name = columns(device, operation)
    for values in zip(*by_name.values()):
        yield dict(zip(by_name, values))


@cache
def gemm_rows(device: str, stack: str = "vllm") -> list[GemmRow]:
    """Products in formats that the cost model has coefficients for, as a stack computes them."""
    operation = "trtllm-gemm" if stack == "trtllm" else "gemm"
    return [
        GemmRow(
            FORMATS[str(r["gemm_dtype"])], _int(r["m"]), _int(r["n"]), _int(r["k"]), _seconds(r)
        )
        for r in _records(device, operation)
        if r["gemm_dtype"] in FORMATS
    ]


@cache
def attention_rows(device: str, operation: str) -> list[AttentionRow]:
    """``operation``: ``generation`` or ``context``; bfloat16, no window."""
    return [
        AttentionRow(
            batch=_int(r["batch_size"]),
            heads=_int(r["num_heads"]),
            kv_heads=_int(r["num_key_value_heads"]),
            dim=_int(r["head_dim"]),
            tokens=_int(r["isl"]) + _int(r["step"]),
            seconds=_seconds(r),
        )
        for r in _records(device, f"{operation}_attention")
        if r["kv_cache_dtype"] == "bfloat16" and not r.get("window_size")
    ]


@cache
def all_reduce_rows(device: str, backend: str = "vllm_graph") -> list[AllReduceRow]:
    """Sizes in the data are elements of two bytes."""
    return [
        AllReduceRow(_int(r["num_gpus"]), 2 * _int(r["message_size"]), _seconds(r))
        for r in _records(device, "custom_allreduce")
        if r["backend"] == backend
    ]


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def _seconds(record: dict[str, object]) -> float:
    return float(record["latency"]) / 1e3  # type: ignore[arg-type]
