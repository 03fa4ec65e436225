"""Whether the Triton kernels can run, and with what."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from twostroke.layers.gpu.drawing import GpuDraws
    from twostroke.layers.gpu.fp8_linear import Fp8Linear
    from twostroke.layers.gpu.gated_delta import GpuDelta
    from twostroke.layers.gpu.operators import GpuOperators
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear
    from twostroke.layers.stored_weights import StoredWeight
    from twostroke.model_spec.recurrent_forms import DeltaForm

# Triton's own switch: kernels run in its interpreter, on a CPU. Slow; for tests.
INTERPRETER = "TRITON_INTERPRET"
# Compute capabilities: from Ampere on; with numbers of 8 bits; whose kernels may overlap.
LEAST, WITH_FP8, OVERLAPPING = (8, 0), (8, 9), (9, 0)


def load_operators(device: torch.device) -> GpuOperators | None:
    """The operators for tensors on ``device``; ``None``: PyTorch's do.

    Triton comes with PyTorch's builds for CUDA, and is imported here first.
    """
    if device.type != "cuda":
        return _operators(is_interpreting=True) if is_interpreting() else None
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or capability < LEAST:
        return None
    return _operators(overlaps=capability >= OVERLAPPING, has_fp8=capability >= WITH_FP8)


def load_quantized_linear(
    weight: StoredWeight, bias: Tensor | None, operators: GpuOperators
) -> QuantizedLinear:
    """The layer over a weight of integers, on the device of its codes."""
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear

    return QuantizedLinear(weight, bias, operators)


def load_fp8_linear(
    weight: Tensor, bias: Tensor | None, operators: GpuOperators
) -> Fp8Linear | None:
    """The layer over a weight that it rounds; ``None`` if its sizes are not those of tiles."""
    from twostroke.layers.gpu.fp8_linear import Fp8Linear

    return Fp8Linear(weight, bias, operators) if Fp8Linear.can_take(weight) else None


def load_draws(device: torch.device) -> GpuDraws | None:
    """What draws on ``device``; ``None``: PyTorch's operators do."""
    operators = load_operators(device)
    if operators is None:
        return None
    from twostroke.layers.gpu.drawing import GpuDraws

    return GpuDraws(operators)


def load_gated_delta(
    form: DeltaForm,
    convolution: Tensor,
    log_rates: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
) -> GpuDelta | None:
    """A GPU's gated delta rule, ``None`` where it cannot run; the arguments are ``GpuDelta``'s."""
    operators = load_operators(convolution.device)
    if operators is None:
        return None
    from twostroke.layers.gpu.gated_delta import GpuDelta

    if not GpuDelta.can_run(form):
        return None
    return GpuDelta(form, convolution, log_rates, bias, norm, eps, operators)


@functools.cache
def _operators(
    *, is_interpreting: bool = False, overlaps: bool = False, has_fp8: bool = True
) -> GpuOperators | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from twostroke.layers.gpu.operators import GpuOperators

    return GpuOperators(is_interpreting=is_interpreting, overlaps=overlaps, has_fp8=has_fp8)


def is_interpreting() -> bool:
    return os.environ.get(INTERPRETER, "0") not in ("", "0")
