"""What the interpreter is held to: kernels stay within the tensors that they get."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from twostroke.layers.gpu.load import is_interpreting

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not is_interpreting(),
    reason="needs Triton's interpreter (`make kernels`)",
)


@pytest.mark.parametrize(("columns", "is_inside"), [(8, True), (9, False)])
def test_a_launch_beyond_its_tensors_fails(columns: int, is_inside: bool) -> None:
    from triton.runtime.errors import InterpreterError

    from twostroke.kernels.triton.activations import gated_mul

    gate_up, out = torch.ones(1, 16), torch.zeros(1, 16)
    arguments = gate_up, out, columns, 16, 0, 16, False
    if is_inside:
        gated_mul[1, 1](*arguments)
        return
    with pytest.raises(InterpreterError, match="2 addresses"):
        gated_mul[1, 1](*arguments)
