"""Coefficients, by kernel, of how much of its data sheet a device reaches; read from TOML files.

The shipped files are fitted to public measurements by ``benchmarks/simulator/fit.py``.
``default.toml`` is fitted to several devices at once, for those without a file. The function that
uses a coefficient says what it does. A user's file may hold only the tables that differ from the
default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from twostroke.core.errors import ConfigError
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.simulator.cost.coefficient_tables import (
    check_tables,
    merge,
    origins,
    parse_file,
    read_table,
)
from twostroke.simulator.cost.measured_on import MeasuredOn, read_measured

FILES = Path(__file__).parent / "efficiency_files"
# In place of a device's name: the coefficients that devices share.
SHARED = ""
# Whose kernels and host times count on a GPU where no stack is given: the default file's.
DEFAULT_STACK = "vllm"
TABLES = (
    "gemm",
    "experts",
    "decode",
    "prefill",
    "latent_decode",
    "latent_prefill",
    "elementwise",
    "all_reduce",
    "all_to_all",
    "host",
    "interval",
    "interval_few_bits",
    "interval_experts",
    "step",
)
# Tables that hold a table for each number format.
BY_FORMAT = ("gemm", "experts")
# What a file may hold beside coefficients: their source, and that of single tables; the devices,
# kinds of link and serving stacks they apply to; the speed and the machine of the measurement.
_ABOUT = ("source", "sources", "devices", "links", "stacks", "speed", "measured")


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
        quantise: How often inputs that are computed in few bits pass through memory first: a kernel
            of its own reads them in 16 bits and writes them in few. 0: fused with what made them.
        quantise_row: Seconds of that kernel for each row, whose largest value it looks for.
        tile_by_rows: The library takes its tile by the number of rows alone, and splits nothing.
    """

    compute: float
    memory: float
    half_tile: float
    prologue: float
    waves: float
    split: float
    launch: float
    sharpness: float
    quantise: float = 0.0
    quantise_row: float = 0.0
    tile_by_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsEfficiency:
    """Coefficients of ``experts_cost.GroupedProducts``; those not named here as in a product.

    Attributes:
        launch: Seconds of a layer's experts that compute nothing: tokens are sorted by expert, two
            products and an activation start, results are added up.
        moves: How often a token's copy for each of its experts passes through memory.
    """

    compute: float
    memory: float
    half_tile: float
    prologue: float
    waves: float
    launch: float
    sharpness: float
    moves: float


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
        layer_experts: What a layer with experts takes beside that: router, sort and grouped
            products are many small kernels.
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
    layer_experts: float = 0.0
    overlap: bool = False
    settle: float = 0.0
    fade: float = 0.5
    wake: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEfficiency:
    """Whole steps on the device, over the sum of their kernels.

    Attributes:
        decode: Time of a decode step over its kernels'.
        prefill: Likewise, a prefill step.
        gap: Seconds between the kernels of each layer, beyond their starts. A layer with experts
            has none: its experts' coefficients hold them.
    """

    decode: float = 1.0
    prefill: float = 1.0
    gap: float = 0.0


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
        interval: For models without experts, whose weights have 16 bits or more.
        interval_few_bits: For models whose weights have fewer; ``None``: like ``interval``.
        interval_experts: For models with experts.
        latent_decode: Latent attention that decodes; ``None``: as other attention.
        latent_prefill: Likewise, its prefill.
        measured: The machine and model of the calibration; ``None`` for shipped files.
        origins: What each table was fitted to (``gemm.fp8``, ``host``).
    """

    gemm: Mapping[str, GemmEfficiency]  # by number format
    experts: Mapping[str, ExpertsEfficiency]  # likewise; empty: as other products
    decode: AttentionEfficiency
    prefill: AttentionEfficiency
    elementwise: ElementwiseEfficiency
    all_reduce: AllReduceEfficiency
    host: HostEfficiency
    interval: Interval
    all_to_all: AllToAllEfficiency = AllToAllEfficiency()
    step: StepEfficiency = StepEfficiency()
    interval_few_bits: Interval | None = None
    interval_experts: Interval | None = None
    latent_decode: AttentionEfficiency | None = None
    latent_prefill: AttentionEfficiency | None = None
    measured: MeasuredOn | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def gemm_for(self, *formats: str) -> GemmEfficiency:
        """Coefficients of the first format that has some: weights, then what is computed."""
        return next((self.gemm[name] for name in formats if name in self.gemm), self.gemm["bf16"])

    def interval_for(self, *, few_bits: bool, has_experts: bool) -> Interval:
        """The interval of a kind of model; a calibration's own holds for what it measured."""
        if self.measured is not None:
            return self.interval
        kind = self.interval_experts if has_experts else self.interval_few_bits
        return kind or self.interval if has_experts or few_bits else self.interval

    def decode_of(self, layer: AttentionSpec) -> AttentionEfficiency:
        return self.latent_decode or self.decode if layer.latent else self.decode

    def prefill_of(self, layer: AttentionSpec) -> AttentionEfficiency:
        return self.latent_prefill or self.prefill if layer.latent else self.prefill

    def experts_for(self, *formats: str) -> ExpertsEfficiency | None:
        """Likewise; ``None`` where experts are computed as other products are.

        That is so if the device computes no tiles, or nothing was measured.
        """
        if not self.gemm["bf16"].half_tile:
            return None
        names = (*formats, "bf16")
        return next((self.experts[name] for name in names if name in self.experts), None)


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
    layers = [parse_file(FILES / "default.toml")]
    for tables in _files_for(device, link):
        if (stack or DEFAULT_STACK) in tables.get("stacks", (stack or DEFAULT_STACK,)):
            layers.append(tables)
    if stack is not None:
        layers.append(parse_file(_stack_file(stack)))
    if path is not None:
        tables = parse_file(path)
        check_tables(tables, path, TABLES, by_format=BY_FORMAT, about=_ABOUT)
        layers.append({"source": str(path), **tables})
    raw: dict[str, Any] = {}
    fitted: dict[str, str] = {}
    for tables in layers:
        raw = merge(raw, tables)
        fitted |= origins(tables, TABLES, BY_FORMAT, str(tables.get("source", FILES)))
    return _build(raw, path or FILES, fitted)


def _files_for(device: str, link: str) -> list[dict[str, Any]]:
    """Shipped files that name the device or its kind of link; those of a serving stack last."""
    chosen = []
    for file in sorted(FILES.glob("*.toml")):
        text = file.read_text(encoding="utf-8")
        if f'"{device}"' not in text and "links" not in text:
            continue  # quicker than to parse it
        tables = parse_file(file)
        if device in tables.get("devices", ()) or link.startswith(tuple(tables.get("links", ()))):
            chosen.append(tables)
    return sorted(chosen, key=lambda tables: "stacks" in tables)


def stack_names() -> list[str]:
    """Serving software with host times of its own, sorted."""
    return sorted(path.stem.removeprefix("stack-") for path in FILES.glob("stack-*.toml"))


def _stack_file(stack: str) -> Path:
    if stack not in stack_names():
        raise ConfigError(
            f"unknown serving stack {stack!r}", hint="known: " + ", ".join(stack_names())
        )
    return FILES / f"stack-{stack}.toml"


Table = TypeVar("Table")


def _build(raw: Mapping[str, Any], path: Path, fitted: Mapping[str, str]) -> Efficiencies:
    def table(kind: type[Table], name: str) -> Table:
        return read_table(kind, raw.get(name, {}), f"{path}: [{name}]")

    def optional(kind: type[Table], name: str) -> Table | None:
        return table(kind, name) if name in raw else None

    return Efficiencies(
        origins=fitted,
        gemm={
            name: read_table(GemmEfficiency, value, f"{path}: [gemm.{name}]")
            for name, value in raw["gemm"].items()
        },
        experts={
            name: read_table(ExpertsEfficiency, value, f"{path}: [experts.{name}]")
            for name, value in raw.get("experts", {}).items()
        },
        decode=table(AttentionEfficiency, "decode"),
        prefill=table(AttentionEfficiency, "prefill"),
        elementwise=table(ElementwiseEfficiency, "elementwise"),
        all_reduce=table(AllReduceEfficiency, "all_reduce"),
        all_to_all=table(AllToAllEfficiency, "all_to_all"),
        host=table(HostEfficiency, "host"),
        interval=table(Interval, "interval"),
        interval_few_bits=optional(Interval, "interval_few_bits"),
        interval_experts=optional(Interval, "interval_experts"),
        latent_decode=optional(AttentionEfficiency, "latent_decode"),
        latent_prefill=optional(AttentionEfficiency, "latent_prefill"),
        step=table(StepEfficiency, "step"),
        measured=read_measured(raw.get("measured"), str(path)),
    )
