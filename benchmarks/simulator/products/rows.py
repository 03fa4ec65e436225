"""Measured experts and latent attention of AI Configurator.

Rows are those of deployments that people run: experts over at most 16 devices, whose tiles divide
their inner size. Experts without a gate, which other kernels compute, are left out. So are rows
that took more than three times as long as the same tokens with another distribution: the device was
disturbed (whole runs of one shape took 5.7 times as long as the next).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.simulator.data import columns

MAX_DEVICES, SMALLEST_TILE, DISTURBED = 16, 64, 3.0
# The data's names of formats, by the name of a weight format. Products of mxfp4 run in 16 bits
# where the device has no 4.
EXPERT_FORMATS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
}
# How unequal experts' loads are: the exponent of the power law that they were drawn from; 0: equal.
SKEWS = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
# Hidden sizes and experts a token of models whose experts have no gate (Nemotron 3), and kernels
# that most shapes of a table have.
WITHOUT_GATE, NARROWED = (2688,), 22
USUAL_KERNELS = {
    ("h100-sxm", "vllm", "mxfp4"): "gptoss",
    ("b200", "vllm", "mxfp4"): "gptoss",
    ("b200", "vllm", "bf16"): "flashinfer_trtllm",
    ("b200", "vllm", "fp8"): "flashinfer_trtllm",
    ("b200", "vllm", "nvfp4"): "flashinfer_trtllm",
    ("b200", "trtllm", "nvfp4"): "cutlass",
}


@dataclass(frozen=True, slots=True)
class ExpertsRow:
    """One layer's experts on one device of a deployment; the busiest one, where they differ.

    Attributes:
        inner: Elements between an expert's products, on all devices together.
        count: Experts of the layer.
        tensor: Devices that share each expert.
        expert: Parts into which the experts are dealt out.
        skew: See ``SKEWS``.
        kernel: What computed it, in the data's words.
    """

    format: str
    tokens: int
    hidden: int
    inner: int
    per_token: int
    count: int
    tensor: int
    expert: int
    skew: float
    kernel: str
    seconds: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.hidden, self.inner, self.per_token, self.count


@dataclass(frozen=True, slots=True)
class LatentRow:
    """One layer's latent attention with its projections, on a device that has ``heads`` of it.

    Attributes:
        tokens: Length of a prompt (prefill) or what is cached before the token (decode).
        weights: Format of the projections.
        cache: Format of the cache.
    """

    heads: int
    batch: int
    tokens: int
    weights: str
    cache: str
    seconds: float


@cache
def experts_rows(device: str, stack: str, format_: str) -> tuple[ExpertsRow, ...]:
    """All rows of a format that are described above."""
    rows = [row for row in _experts(device, stack) if row.format == format_]
    kernel = USUAL_KERNELS.get((device, stack, format_), "")
    return _undisturbed([row for row in rows if kernel in row.kernel])


@cache
def marlin_rows(device: str) -> tuple[ExpertsRow, ...]:
    """Rows of vLLM's Marlin in mxfp4, whose weights are multiplied in 16 bits."""
    rows = [row for row in _experts(device, "vllm") if row.format == "mxfp4"]
    return _undisturbed([row for row in rows if "marlin" in row.kernel])


def _undisturbed(rows: Sequence[ExpertsRow]) -> tuple[ExpertsRow, ...]:
    least: dict[object, float] = {}
    for row in rows:
        least[_tokens(row)] = min(row.seconds, least.get(_tokens(row), row.seconds))
    return tuple(row for row in rows if row.seconds <= DISTURBED * least[_tokens(row)])


def _tokens(row: ExpertsRow) -> object:
    return row.shape, row.tensor, row.expert, row.tokens, row.kernel


@cache
def _experts(device: str, stack: str) -> tuple[ExpertsRow, ...]:
    table = columns(device, "trtllm-moe" if stack == "trtllm" else "moe")
    names = ["moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"]
    names += ["moe_tp_size", "moe_ep_size", "distribution", "kernel_source", "latency"]
    rows = []
    for kind, tokens, hidden, inner, top, count, tensor, expert, spread, kernel, latency in zip(
        *(table[name] for name in names)
    ):
        row = ExpertsRow(
            EXPERT_FORMATS.get(str(kind), ""),
            _int(tokens),
            _int(hidden),
            _int(inner),
            _int(top),
            _int(count),
            _int(tensor),
            _int(expert),
            SKEWS[str(spread)],
            str(kernel),
            float(str(latency)) / 1e3,
        )
        # Weights in mxfp4 are padded when they are loaded, so every division serves.
        fits = row.format == "mxfp4" or row.inner // row.tensor % SMALLEST_TILE == 0
        few = row.tensor * row.expert <= MAX_DEVICES
        gated = row.hidden not in WITHOUT_GATE and row.per_token != NARROWED
        gated = gated and "nongated" not in row.kernel
        if row.format and fits and few and gated:
            rows.append(row)
    return tuple(rows)


def _int(value: object) -> int:
    return int(str(value))


@cache
def latent_rows(device: str, operation: str) -> tuple[LatentRow, ...]:
    """``operation``: ``context`` or ``generation``; attention itself in 16 bits."""
    table = columns(device, f"mla_{operation}_module")
    length = "isl" if operation == "context" else "step"
    names = ["mla_dtype", "num_heads", "batch_size", length, "gemm_type", "kv_cache_dtype"]
    names += ["latency"]
    return tuple(
        LatentRow(
            _int(heads),
            _int(batch),
            _int(tokens),
            EXPERT_FORMATS[str(weights)],
            EXPERT_FORMATS[str(cached)],
            float(str(latency)) / 1e3,
        )
        for kind, heads, batch, tokens, weights, cached, latency in zip(
            *(table[name] for name in names)
        )
        if kind == "bfloat16" and (operation != "context" or _int(tokens) > 1)
    )


def without_every_fourth(rows: Sequence[ExpertsRow]) -> tuple[list[ExpertsRow], list[ExpertsRow]]:
    """Rows to fit, and those of every fourth shape (every second, of few) to judge."""
    shapes = sorted({row.shape for row in rows})
    every = 4 if len(shapes) > 3 else 2
    out = set(shapes[every // 2 :: every])
    return [row for row in rows if row.shape not in out], [row for row in rows if row.shape in out]
