"""FLOPs and bytes of a step: the cost model itself, on devices that have one limit only.

On a device of 1 FLOP/s and unlimited memory a step takes as many seconds as it has FLOPs, on one
of 1 byte/s and unlimited arithmetic as many as it moves bytes. So these counts are the terms of the
estimates, for every kind of layer, and there is no second arithmetic beside it.
"""

from __future__ import annotations

from math import inf

from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import (
    AllReduceEfficiency,
    AttentionEfficiency,
    Efficiencies,
    ElementwiseEfficiency,
    GemmEfficiency,
    HostEfficiency,
    Interval,
)
from twostroke.simulator.cost.hardware_sheet import FORMATS, HardwareSheet
from twostroke.timing.step_shape import StepShape

# Everything reaches its limit at once, nothing takes time to start. The sharpness is of no effect,
# since one of the two times is always 0.
_ATTENTION = AttentionEfficiency(
    compute=1.0, memory=1.0, launch=0.0, block=0.0, tile=0.0, sharpness=1.0
)
_GEMM = GemmEfficiency(
    compute=1.0,
    memory=1.0,
    half_tile=0.0,
    prologue=0.0,
    waves=0.0,
    split=0.0,
    launch=0.0,
    sharpness=1.0,
)
_PERFECT = Efficiencies(
    gemm={"bf16": _GEMM},
    experts={},
    decode=_ATTENTION,
    prefill=_ATTENTION,
    elementwise=ElementwiseEfficiency(memory=1.0, launch=0.0),
    all_reduce=AllReduceEfficiency(
        launch=0.0,
        rank=0.0,
        one_shot=1.0,
        two_shot=1.0,
        sync=0.0,
        ring=1.0,
        ring_from=inf,
        ring_launch=0.0,
    ),
    host=HostEfficiency(step=0.0, request=0.0, token=0.0),
    interval=Interval(decode_low=1.0, decode_high=1.0, prefill_low=1.0, prefill_high=1.0),
)


class StepCounts:
    """Counts the FLOPs and bytes of a model's steps, over all devices together.

    What devices send each other is not counted.

    Raises:
        ConfigError: A number format is unknown.
    """

    def __init__(self, model: ModelSpec, dtypes: Dtypes) -> None:
        self._flops = _model(model, dtypes, flops=1.0, bandwidth=inf)
        self._bytes = _model(model, dtypes, flops=inf, bandwidth=1.0)

    def flops(self, shape: StepShape) -> float:
        return self._flops.step(shape).seconds

    def bytes(self, shape: StepShape) -> float:
        return self._bytes.step(shape).seconds


def _model(
    model: ModelSpec, dtypes: Dtypes, *, flops: float, bandwidth: float
) -> RooflineCostModel:
    device = HardwareSheet(
        name="one-limit",
        title="one limit",
        aliases=(),
        memory_bytes=0,
        memory_bandwidth=bandwidth,
        compute_units=1,
        cache_bytes=0,
        dense_flops=dict.fromkeys(FORMATS, flops),
        link_kind="",
        link_bandwidth=0.0,
        link_domain=1,
        network_bandwidth=0.0,
        power_watts=0.0,
        price_per_hour=0.0,
        sources={},
    )
    return RooflineCostModel(device, model, Parallel(), dtypes, _PERFECT)
