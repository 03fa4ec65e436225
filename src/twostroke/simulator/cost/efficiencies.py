"""Coefficients, by kernel, of how much of its data sheet a device reaches; read from TOML files.

The shipped files are fitted to public measurements by ``benchmarks/simulator/fit.py``.
``default.toml`` is fitted to several devices at once, for those without a file. The function that
uses a coefficient says what it does. A user's file may hold only the tables that differ from the
default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason
from twostroke.simulator.cost.measured_on import MeasuredOn, read_measured

FILES = Path(__file__).parent / "efficiency_files"
# In place of a device's name: the coefficients that devices share.
SHARED = ""
EXAMPLE = f"see {FILES / 'default.toml'}"
TABLES = (
    *("gemm", "decode", "prefill", "elementwise", "all_reduce", "all_to_all"),
    *("host", "interval", "step"),
)
# What a file may hold beside coefficients: their source, devices and kinds of link they apply to,
# the speed and the machine of the measurement.
_ABOUT = ("source", "devices", "links", "speed", "measured")
# Coefficients that something is divided by, and those that may be negative. All others are 0 or
# more.
_DIVISORS = frozenset(
    ("compute", "memory", "sharpness", "one_shot", "two_shot", "ring", "share", "decode", "prefill")
) | {f"{kind}_{end}" for kind in ("decode", "prefill") for end in ("low", "high")}
_SIGNED = frozenset(("crowding", "ring_crowding"))
_MAX = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmEfficiency:
    """Coefficients of ``gemm.Product``.

    Attributes:
        compute: Share of the peak rate that very large tiles reach.
        memory: Share of the bandwidth.
        half_tile: Elements of an output tile that reaches half of ``compute``; 0: the device
            computes no tiles (CPU).
        prologue: Steps along the inner dimension that filling a tile's pipeline takes.
        waves: 1: a partly filled last wave of tiles costs a whole one; 0: its share of one.
        split: Seconds to add up a product that was split along its inner dimension.
        launch: Seconds from one kernel to the next.
        sharpness: Exponent with which compute and memory time add: 1 is their sum, infinity their
            maximum.
    """

    compute: float
    memory: float
    half_tile: float
    prologue: float
    waves: float
    split: float
    launch: float
    sharpness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionEfficiency:
    """Coefficients of ``attention_cost``.

    Attributes:
        compute: Share of the peak rate.
        memory: Share of the bandwidth.
        launch: Seconds from one kernel to the next.
        block: Seconds of one wave of thread blocks, beyond bytes and FLOPs.
        tile: Tokens of a query tile: the diagonal is computed in whole tiles.
        sharpness: See ``GemmEfficiency``.
        chunk: Seconds of each prefill chunk, if every chunk is a kernel of its own (CPU).
    """

    compute: float
    memory: float
    launch: float
    block: float
    tile: float
    sharpness: float
    chunk: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceEfficiency:
    """Coefficients of ``communication.all_reduce_time``.

    Attributes:
        launch: Seconds of one that moves nothing, on two devices.
        rank: Seconds for each device beyond two.
        one_shot: Share of the link's rate that one-shot reaches.
        two_shot: Share of the link's rate that two-shot reaches.
        sync: Seconds between the two halves of two-shot.
        ring: Share of the link's rate that the library's ring reaches.
        ring_from: Bytes from which on the ring is used.
        ring_launch: Seconds that the ring takes to start.
        crowding: Exponent by which half the number of devices slows down one- and two-shot: 0 if
            every pair has its own path, more if pairs share the host's.
        ring_crowding: That exponent for the ring; below 0 if a switch does the sum.
        network: Seconds by which it takes longer to start between nodes. The default makes 16 KiB
            take what NCCL's own model says of two nodes of eight H100: 25.9 us for 4 KiB, 26.5 for
            8 (its log in https://github.com/NVIDIA/nccl/issues/1453; measured there: 75).
    """

    launch: float
    rank: float
    one_shot: float
    two_shot: float
    sync: float
    ring: float
    ring_from: float
    ring_launch: float
    crowding: float = 0.0
    ring_crowding: float = 0.0
    network: float = 17e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAllEfficiency:
    """Coefficients of ``communication.all_to_all_time``; by default those of NCCL on H100.

    Attributes:
        launch: Seconds of one that moves little.
        share: Share of the link's rate.
    """

    launch: float = 8e-6
    share: float = 0.59


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseEfficiency:
    """Norms, rotations, activations, copies, sampling.

    Attributes:
        memory: Share of the bandwidth.
        launch: Seconds from one kernel to the next.
    """

    memory: float
    launch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEfficiency:
    """Seconds that the host needs.

    Attributes:
        step: For a step.
        request: For each request of a step.
        token: For each prefill token.
        layer: For each layer of a prefill step, whose kernels are started one by one; those of a
            decode step start all at once (a CUDA graph). The device waits only if it is faster.
        overlap: Whether the host prepares the next step while the device runs. Then the longer of
            the two counts.
        settle: Extra time of the first decode step after a prefill: the prompt has driven weights
            and code out of the caches (CPU).
        fade: Share of ``settle`` that is left with each further step.
        wake: Extra time of a step after a pause: other programs have used the caches.
    """

    step: float
    request: float
    token: float
    layer: float = 0.0
    overlap: bool = False
    settle: float = 0.0
    fade: float = 0.5
    wake: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """10th and 90th percentile of measured over estimated time, on rows not used for the fit."""

    decode_low: float
    decode_high: float
    prefill_low: float
    prefill_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """All coefficients of one device (and serving stack).

    Attributes:
        source: One line on where they are from.
        step_decode: Device time of a decode step over the sum of its kernels.
        step_prefill: Device time of a prefill step over the sum of its kernels.
        measured: The machine and model of the calibration; ``None`` for shipped files.
    """

    source: str
    gemm: Mapping[str, GemmEfficiency]  # by number format
    decode: AttentionEfficiency
    prefill: AttentionEfficiency
    elementwise: ElementwiseEfficiency
    all_reduce: AllReduceEfficiency
    host: HostEfficiency
    interval: Interval
    all_to_all: AllToAllEfficiency = AllToAllEfficiency()
    step_decode: float = 1.0
    step_prefill: float = 1.0
    measured: MeasuredOn | None = None

    def gemm_for(self, format_: str) -> GemmEfficiency:
        return self.gemm.get(format_) or self.gemm["bf16"]


def load_efficiencies(
    device: str, path: Path | None = None, stack: str | None = None, *, link: str = ""
) -> Efficiencies:
    """Coefficients for a device: the defaults, overridden by the shipped files that name it.

    Args:
        device: Name of a hardware sheet; ``SHARED`` takes only the defaults.
        path: A user's TOML file; its values override all others.
        stack: Serving software whose host times to take (``vllm``, ``sglang``, ``trtllm``); the
            default's otherwise.
        link: The sheet's ``link_kind``: some coefficients belong to a kind of link.

    Raises:
        ConfigError: The file is unreadable, or names something unknown.
    """
    raw = _parse(FILES / "default.toml")
    for file in sorted(FILES.glob("*.toml")):
        text = file.read_text(encoding="utf-8")
        if f'"{device}"' not in text and "links" not in text:
            continue  # quicker than to parse it
        tables = _parse(file)
        of_device = device in tables.get("devices", ())
        if of_device or link.startswith(tuple(tables.get("links", ()))):
            if not of_device and "gemm" not in tables:
                tables["source"] = f"{raw['source']}; links: {tables['source']}"
            raw = _merge(raw, tables)
    if stack is not None:
        tables = _parse(_stack_file(stack))
        tables["source"] = f"{raw['source']}; host: {tables['source']}"
        raw = _merge(raw, tables)
    if path is not None:
        tables = _parse(path)
        _check_tables(tables, path)
        raw = _merge(raw, tables)
    return _build(raw, path or FILES)


def stack_names() -> list[str]:
    """Serving software with host times of its own, sorted."""
    return sorted(path.stem.removeprefix("stack-") for path in FILES.glob("stack-*.toml"))


def _stack_file(stack: str) -> Path:
    if stack not in stack_names():
        raise ConfigError(
            f"unknown serving stack {stack!r}", hint="known: " + ", ".join(stack_names())
        )
    return FILES / f"stack-{stack}.toml"


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {path}: {reason(error)}",
            hint="auto, data-sheet, or a file such as `twostroke calibrate` writes",
        ) from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


Table = TypeVar(
    "Table",
    GemmEfficiency,
    AttentionEfficiency,
    AllReduceEfficiency,
    AllToAllEfficiency,
    ElementwiseEfficiency,
    HostEfficiency,
    Interval,
)


def _check_tables(raw: Mapping[str, Any], path: Path) -> None:
    for name, value in raw.items():
        if name not in (*TABLES, *_ABOUT):
            raise ConfigError(f"{path}: unknown table [{name}]", hint="known: " + ", ".join(TABLES))
        inside = [value, *value.values()] if name == "gemm" and isinstance(value, dict) else [value]
        if name in TABLES and not all(isinstance(table, dict) for table in inside):
            raise ConfigError(f"{path}: {name} must be a table of coefficients", hint=EXAMPLE)


def _table(kind: type[Table], raw: Mapping[str, Any], where: str) -> Table:
    types = {field.name: field.type for field in fields(kind)}
    if unknown := sorted(set(raw) - set(types)):
        raise ConfigError(
            f"{where}: unknown coefficients {', '.join(unknown)}", hint="known: " + ", ".join(types)
        )
    for name, value in raw.items():
        _check_value(name, value, types[name] == "bool", where)
    try:
        return kind(**raw)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}", hint=EXAMPLE) from error


def _check_value(name: str, value: object, is_bool: bool, where: str) -> None:
    if is_bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: {name} must be true or false, got {value!r}", hint=EXAMPLE)
        return
    allowed = "a number" if name in _SIGNED else "above 0" if name in _DIVISORS else "0 or more"
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    lowest = -_MAX if name in _SIGNED else 1e-15 if name in _DIVISORS else 0.0
    if number and lowest <= value <= _MAX:  # type: ignore[operator]
        return
    raise ConfigError(f"{where}: {name} must be {allowed}, got {value!r}", hint=EXAMPLE)


def _build(raw: Mapping[str, Any], path: Path) -> Efficiencies:
    def table(kind: type[Table], name: str) -> Table:
        return _table(kind, raw.get(name, {}), f"{path}: [{name}]")

    steps = raw.get("step", {})
    for name, value in steps.items():
        if name not in ("decode", "prefill"):
            raise ConfigError(
                f"{path}: [step]: unknown coefficient {name}", hint="known: decode, prefill"
            )
        _check_value(name, value, False, f"{path}: [step]")
    return Efficiencies(
        source=str(raw.get("source", path)),
        gemm={
            name: _table(GemmEfficiency, value, f"{path}: [gemm.{name}]")
            for name, value in raw["gemm"].items()
        },
        decode=table(AttentionEfficiency, "decode"),
        prefill=table(AttentionEfficiency, "prefill"),
        elementwise=table(ElementwiseEfficiency, "elementwise"),
        all_reduce=table(AllReduceEfficiency, "all_reduce"),
        all_to_all=table(AllToAllEfficiency, "all_to_all"),
        host=table(HostEfficiency, "host"),
        interval=table(Interval, "interval"),
        step_decode=float(steps.get("decode", 1.0)),
        step_prefill=float(steps.get("prefill", 1.0)),
        measured=read_measured(raw.get("measured"), str(path)),
    )
