"""Triton's kernels against PyTorch: on a GPU, or in the interpreter (`make kernels`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from twostroke.layers.gpu.load import is_interpreting, load_operators

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators


@pytest.fixture(scope="session")
def device() -> torch.device:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if is_interpreting():
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    pytest.skip("no GPU, and TRITON_INTERPRET is not set")


@pytest.fixture(scope="session")
def operators(device: torch.device) -> GpuOperators:
    operators = load_operators(device)
    assert operators is not None
    return operators


@pytest.fixture(autouse=True)
def inside() -> Iterator[None]:
    """In the interpreter, which sees no address that is out of bounds, kernels are watched."""
    if importlib.util.find_spec("triton") is None or not is_interpreting():
        yield
        return
    from tests.layers.gpu.bounds import within_bounds

    with within_bounds():
        yield
