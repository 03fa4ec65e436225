"""Measured kernels in place of coefficients: exact at a table's points, interpolated between.

The ratio of measured to modelled time is interpolated, in logarithms along every axis. The model
covers how time grows with a shape, so the ratio is smooth where times are not, and few points are
enough. A kernel that was measured with its weights in the cache is taken to need at least the time
to read them from memory: a server's weights are never in the cache.

Tables are JSON files made by ``benchmarks/simulator/fit.py --tables`` from a user's measurements;
none are shipped.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log
from pathlib import Path
from typing import Any

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.simulator.cost.attention_cost import (
    DecodeAttention,
    DeviceShare,
    PrefillAttention,
)
from twostroke.simulator.cost.communication import all_reduce_time
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.gemm import Product
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.cost.kernel_time import KernelTime

ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "fp32": 4.0}
# Curves from which an estimate is interpolated if no table has exactly its shape.
NEIGHBOURS = 4

Points = Sequence[tuple[float, float]]  # (place on the axis, seconds)


class Curve:
    """Logarithm of measured over modelled time along one axis; constant beyond its ends.

    Between two points the time stays between the times of the two: where launch time dominates,
    measured times are flat and the model's are not.
    """

    def __init__(self, points: Points, model: Callable[[float], float]) -> None:
        self._points = sorted(points)
        self._model = model
        self._places = [log(place) for place, _ in self._points]
        self._ratios: list[float | None] = [None] * len(self._points)

    def ratio(self, place: float) -> float:
        """Logarithm of the ratio at ``place``."""
        x = log(place)
        upper = bisect_right(self._places, x)
        if upper == 0:
            return self._ratio_at(0)
        if upper == len(self._places):
            return self._ratio_at(upper - 1)
        left, right = self._places[upper - 1], self._places[upper]
        share = (x - left) / (right - left)
        if not share:
            return self._ratio_at(upper - 1)
        ratio = (1 - share) * self._ratio_at(upper - 1) + share * self._ratio_at(upper)
        modelled = log(self._model(place))
        ends = [log(self._points[index][1]) for index in (upper - 1, upper)]
        return min(max(ratio, min(ends) - modelled), max(ends) - modelled)

    def check(self) -> None:
        """Raises ValueError, TypeError or ArithmeticError where a point is no measurement."""
        if not self._points:
            raise ValueError("a curve without points")
        for place, seconds in self._points:
            if not (0 < place < inf and 0 < seconds < inf):
                raise ValueError(f"[{place}, {seconds}] is no size and time")

    def _ratio_at(self, index: int) -> float:
        ratio = self._ratios[index]
        if ratio is None:
            place, seconds = self._points[index]
            ratio = self._ratios[index] = log(seconds / self._model(place))
        return ratio


class Grid:
    """Curves at points of a space; between points weighted by inverse square log distance."""

    def __init__(
        self, curves: Mapping[tuple[float, ...], Curve], weights: Sequence[float] = ()
    ) -> None:
        self._curves = dict(curves)
        self._weights = weights
        self._near: dict[tuple[float, ...], list[tuple[float, Curve]]] = {}

    def curves(self) -> Sequence[Curve]:
        """All curves. Raises ValueError if there are none, or a point is not positive."""
        if not self._curves or any(not value > 0 for where in self._curves for value in where):
            raise ValueError("no shapes, or one that is not positive")
        return list(self._curves.values())

    def ratio(self, where: tuple[float, ...], place: float) -> float:
        near = self._near.get(where)
        if near is None:
            near = self._near[where] = self._neighbours(where)
        return sum(share * curve.ratio(place) for share, curve in near)

    def _neighbours(self, where: tuple[float, ...]) -> list[tuple[float, Curve]]:
        exact = self._curves.get(where)
        if exact is not None:
            return [(1.0, exact)]
        weights = self._weights or (1.0,) * len(where)
        ranked = sorted(
            (sum(w * abs(log(a / b)) for w, a, b in zip(weights, where, point)), point)
            for point in self._curves
        )[:NEIGHBOURS]
        shares = [1.0 / (distance**2 + 1e-9) for distance, _ in ranked]
        return [
            (share / sum(shares), self._curves[point]) for share, (_, point) in zip(shares, ranked)
        ]


class KernelTables:
    """Measured kernels of one device; each method corrects a modelled time.

    Args:
        raw: The contents of a table file: ``gemm`` maps a number format to ``[outputs, inputs,
            [[rows, seconds], ..]]`` entries; ``decode`` and ``prefill`` hold ``[heads, kv_heads,
            head_dim, batch, [[tokens, seconds], ..]]`` (tokens: context, or prompt length);
            ``all_reduce`` maps numbers of devices to ``[[bytes, seconds], ..]``.
    """

    def __init__(
        self, raw: Mapping[str, Any], hardware: HardwareSheet, efficiencies: Efficiencies
    ) -> None:
        self.hardware = hardware
        self.efficiencies = efficiencies
        self._gemm = {
            name: self._gemm_grid(name, entries) for name, entries in raw.get("gemm", {}).items()
        }
        self._decode = self._attention_grids(raw.get("decode", ()), self._decode_model)
        self._prefill = self._attention_grids(raw.get("prefill", ()), self._prefill_model)
        self._all_reduce = {
            int(ranks): Curve(_rising(points), self._all_reduce_model(int(ranks)))
            for ranks, points in raw.get("all_reduce", {}).items()
        }

    @classmethod
    def read(cls, path: Path, hardware: HardwareSheet, efficiencies: Efficiencies) -> KernelTables:
        """Raises ConfigError if the file is no table, or one of another device."""
        hint = "make one with python -m benchmarks.simulator.fit --tables DEVICE FILE"
        try:
            raw = json.loads(read_text(path))
            tables = cls(raw, hardware, efficiencies)
            tables.check()
            if not any(raw.get(kind) for kind in ("gemm", "decode", "prefill", "all_reduce")):
                raise ValueError("it holds no kernels")
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ConfigError(
                f"cannot read kernel tables from {path}: {reason(error)}", hint=hint
            ) from error
        if (device := raw.get("device", hardware.name)) != hardware.name:
            raise ConfigError(f"{path} has kernels of {device}, not of {hardware.name}", hint=hint)
        return tables

    def check(self) -> None:
        """Raises ValueError, TypeError or ArithmeticError if a point of any curve has no ratio."""
        grids = [*self._gemm.values(), *self._decode.values(), *self._prefill.values()]
        for curve in [
            *self._all_reduce.values(),
            *(curve for grid in grids for curve in grid.curves()),
        ]:
            curve.check()

    @property
    def parts(self) -> list[str]:
        """Parts of a step of which it holds kernels."""
        held = {
            "products": self._gemm,
            "attention": self._decode or self._prefill,
            "collectives": self._all_reduce,
        }
        return [part for part, kernels in held.items() if kernels]

    def gemm(
        self, format_: str, rows: float, outputs: float, inputs: int, time: KernelTime
    ) -> KernelTime:
        grid = self._gemm.get(format_)
        return time if grid is None else _scaled(time, grid.ratio((outputs, inputs), rows))

    def decode(
        self, heads: int, kv_heads: int, dim: int, requests: float, context: float, time: KernelTime
    ) -> KernelTime:
        """``context`` is that of one request."""
        grid = self._decode.get(dim)
        return (
            time
            if grid is None
            else _scaled(time, grid.ratio((kv_heads, heads / kv_heads, requests), context))
        )

    def prefill(
        self, heads: int, kv_heads: int, dim: int, chunks: float, length: float, time: KernelTime
    ) -> KernelTime:
        grid = self._prefill.get(dim)
        return (
            time
            if grid is None
            else _scaled(time, grid.ratio((kv_heads, heads / kv_heads, chunks), length))
        )

    def all_reduce(self, size: float, ranks: int, time: float) -> float:
        curve = self._all_reduce.get(ranks)
        return time if curve is None or not size else time * exp(curve.ratio(size))

    def _gemm_grid(self, format_: str, entries: Sequence[Any]) -> Grid:
        hardware, efficiency = self.hardware, self.efficiencies.gemm_for(format_)
        bytes_ = ELEMENT_BYTES[format_]

        def curve(outputs: int, inputs: int, points: Points) -> Curve:
            def model(rows: float) -> float:
                return (
                    Product(
                        outputs,
                        inputs,
                        efficiency=efficiency,
                        flops=hardware.dense_flops[hardware.compute_format(format_)],
                        bandwidth=hardware.memory_bandwidth,
                        units=hardware.compute_units,
                        weight_bytes=bytes_,
                    )
                    .time(rows)
                    .seconds
                )

            floor = bytes_ * outputs * inputs / hardware.memory_bandwidth
            return Curve([(rows, max(seconds, floor)) for rows, seconds in points], model)

        return Grid(
            {
                (outputs, inputs): curve(outputs, inputs, points)
                for outputs, inputs, points in entries
            }
        )

    def _attention_grids(
        self,
        entries: Sequence[Any],
        model: Callable[[AttentionSpec, float], Callable[[float], float]],
    ) -> dict[int, Grid]:
        by_dim: dict[int, dict[tuple[float, ...], Curve]] = {}
        for heads, kv_heads, dim, batch, points in entries:
            layer = AttentionSpec(heads, kv_heads, dim, dim)
            curve = Curve([(a, b) for a, b in points], model(layer, batch))
            by_dim.setdefault(dim, {})[kv_heads, heads / kv_heads, batch] = curve
        # Twice the requests with half the heads are nearly the same work; the number of query
        # heads per KV head matters less.
        return {dim: Grid(curves, (1.0, 0.5, 1.0)) for dim, curves in by_dim.items()}

    def _decode_model(self, layer: AttentionSpec, batch: float) -> Callable[[float], float]:
        attention = DecodeAttention(layer, self.efficiencies.decode, self._share())
        return lambda context: attention.time(batch, batch * context).seconds

    def _prefill_model(self, layer: AttentionSpec, batch: float) -> Callable[[float], float]:
        attention = PrefillAttention(layer, self.efficiencies.prefill, self._share())
        return lambda length: attention.time(((round(length), 0),) * round(batch)).seconds

    def _share(self) -> DeviceShare:
        """All of a layer on one device, in the precision of the measurements."""
        hardware = self.hardware
        return DeviceShare(
            flops=hardware.dense_flops[hardware.compute_format("bf16")],
            bandwidth=hardware.memory_bandwidth,
            units=hardware.compute_units,
        )

    def _all_reduce_model(self, ranks: int) -> Callable[[float], float]:
        def model(size: float) -> float:
            link = self.hardware.link_bandwidth
            return all_reduce_time(size, ranks, efficiency=self.efficiencies.all_reduce, link=link)

        return model


def _rising(points: Sequence[tuple[float, float]]) -> Points:
    """Points with times lowered until they rise: a smaller size never takes longer."""
    rising: list[tuple[float, float]] = []
    lowest = inf
    for place, seconds in sorted(points, reverse=True):
        lowest = min(lowest, seconds)
        rising.append((place, lowest))
    return rising[::-1]


def _scaled(time: KernelTime, ratio: float) -> KernelTime:
    return time.times(exp(ratio))
