"""Matrix products on one device, in the number formats of a model's weights."""

from __future__ import annotations

from typing import TypedDict

from twostroke.model_spec.number_formats import NumberFormat
from twostroke.simulator.cost.efficiencies import Efficiencies
from twostroke.simulator.cost.experts_cost import GroupedProducts
from twostroke.simulator.cost.gemm import Product
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.simulator.cost.kernel_tables import KernelTables
from twostroke.simulator.cost.kernel_time import KernelTime


class _Rates(TypedDict):
    flops: float
    bandwidth: float
    units: int
    weight_bytes: float


class DeviceProducts:
    """Times of a model's products. Those of whole sizes are made once and kept.

    Args:
        weights: Format of quantised weights; all others have 16 bits, or 32 where it is fp32.
        tables: Measured products, used in place of the coefficients for the formats they cover.
    """

    def __init__(
        self,
        hardware: HardwareSheet,
        weights: NumberFormat,
        efficiencies: Efficiencies,
        tables: KernelTables | None,
    ) -> None:
        self._hardware, self._weights = hardware, weights
        self._efficiencies, self._tables = efficiencies, tables
        is_fp32 = weights.name == "fp32"
        self.plain_format = hardware.compute_format("fp32" if is_fp32 else "bf16")
        self.plain_bytes = 4.0 if is_fp32 else 2.0
        self.compute_format = hardware.compute_format(weights.compute)
        self._products: dict[tuple[float, int, bool], Product] = {}

    def time(self, rows: float, outputs: float, inputs: int, quantised: bool) -> KernelTime:
        """Time of ``[rows, inputs] x [inputs, outputs]``."""
        key = outputs, inputs, quantised
        product = self._products.get(key)
        if product is None:
            product = self._product(*key)
            if isinstance(outputs, int):  # those of experts differ from step to step
                self._products[key] = product
        time = product.time(rows)
        if self._tables is None:
            return time
        return self._tables.gemm(self._format(quantised), rows, outputs, inputs, time)

    def grouped(self, products: list[tuple[int, int, bool]]) -> GroupedProducts | None:
        """The products of a layer's experts; ``None``: it has none, or nothing was measured.

        Args:
            products: (outputs, inputs, quantised) of one expert's on this device.
        """
        if not products:
            return None
        quantised = products[0][2]
        names = (self._weights.name,) if quantised else ()
        efficiency = self._efficiencies.experts_for(*names, self._format(quantised))
        if efficiency is None:
            return None
        sizes = [(outputs, inputs) for outputs, inputs, _ in products]
        return GroupedProducts(sizes, efficiency=efficiency, **self._rates(quantised))

    def _product(self, outputs: float, inputs: int, quantised: bool) -> Product:
        names = (self._weights.name,) if quantised else ()
        efficiency = self._efficiencies.gemm_for(*names, self._format(quantised))
        return Product(outputs, inputs, efficiency=efficiency, **self._rates(quantised))

    def _rates(self, quantised: bool) -> _Rates:
        return {
            "flops": self._hardware.dense_flops[self._format(quantised)],
            "bandwidth": self._hardware.memory_bandwidth,
            "units": self._hardware.compute_units,
            "weight_bytes": (self._weights.bits if quantised else 8 * self.plain_bytes) / 8,
        }

    def _format(self, quantised: bool) -> str:
        return self.compute_format if quantised else self.plain_format
