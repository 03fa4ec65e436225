"""What the page shows of a model, by whatever knows models and hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from twostroke.model_spec.spec import ModelSpec


class StepWork(NamedTuple):
    """What a step computed or would compute.

    Attributes:
        requests: That compute one token each, and their drafts.
        context: Tokens that these attend to together, themselves included.
        chunks: New tokens, and tokens cached before them, of each chunk of a prompt.
        sampled: Requests that draw a token.
        drafts: Drafts that the decoding requests verify, all together.
    """

    requests: int
    context: int
    chunks: tuple[tuple[int, int], ...]
    sampled: int
    drafts: int = 0


class StepCost(msgspec.Struct, frozen=True):
    """What a step costs.

    Attributes:
        flops: One multiply and one add are two.
        bytes: To and from memory: weights, cached keys and values, what passes between kernels.
        seconds: That the cost model estimates; ``None`` where it knows no such device.
        low: Lower end of its interval.
        high: Upper end of its interval.
        binding: What most of the time waits for: ``compute``, ``memory``, ``communication``,
            ``launch`` or ``host``; empty without an estimate.
    """

    flops: float
    bytes: float
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    binding: str = ""


class Ceilings(msgspec.Struct, frozen=True):
    """What one device can do at most.

    Attributes:
        device: In words.
        flops: FLOP/s of products in ``format``.
        bandwidth: Bytes/s of the main memory.
        cache_bytes: Last-level cache; 0: not known.
        devices: That share the model; the rates are of all of them together.
        source: Where the numbers come from.
    """

    device: str
    flops: float
    bandwidth: float
    format: str = ""
    cache_bytes: int = 0
    devices: int = 1
    source: str = ""


class StepCosts(Protocol):
    """FLOPs, bytes and estimated times of steps of one model on one device. Pure; any thread."""

    @property
    def ceilings(self) -> Ceilings | None:
        """The ceilings of the device's sheet; ``None`` where there is none."""
        ...

    def cost(self, work: StepWork) -> StepCost: ...


# FLOP/s of a product and bytes/s of a copy; what ``runtime.speed_probe`` makes.
Probe = Callable[[], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the page shows of a model.

    Attributes:
        weights: Format in which the weights are kept.
        kv_cache: Format in which keys and values are kept.
        ranks: Devices that share each layer.
        measured: Whether steps come from a device; else they are the cost model's own.
        calibrated: What a calibration measured of this machine, if one is given.
        machine: What the processor or GPU calls itself; empty where nobody knows.
        make_probe: Makes what measures the speed of this machine, where the engine runs on it.
            Slow, and to be called on a thread of its own.
        notes: Sentences on what is assumed.
    """

    name: str
    spec: ModelSpec
    weights: str
    kv_cache: str
    costs: StepCosts
    ranks: int = 1
    measured: bool = True
    calibrated: Ceilings | None = None
    machine: str = ""
    make_probe: Callable[[], Probe] | None = None
    notes: Sequence[str] = ()
