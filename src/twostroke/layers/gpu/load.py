"""Whether the Triton kernels can run, and with what."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

# Triton's own switch: kernels run in its interpreter, on a CPU. Slow; for tests.
INTERPRETER = "TRITON_INTERPRET"


def load_operators(device: torch.device) -> GpuOperators | None:
    """The operators for tensors on ``device``; ``None``: PyTorch's do.

    Triton comes with PyTorch's builds for CUDA, and is imported here first.
    """
    if device.type == "cuda" or is_interpreting():
        return _operators(is_interpreting=device.type != "cuda")
    return None


@functools.cache
def _operators(*, is_interpreting: bool) -> GpuOperators | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from twostroke.layers.gpu.operators import GpuOperators

    return GpuOperators(is_interpreting=is_interpreting)


def is_interpreting() -> bool:
    return os.environ.get(INTERPRETER, "0") not in ("", "0")
