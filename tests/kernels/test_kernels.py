"""Protects: each build of the kernels computes what PyTorch does, at sizes that fill no block."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels import library as library_module
from twostroke.kernels import pass_calls
from twostroke.kernels.library import Library, load_library
from twostroke.kernels.pass_calls import PassCall
from twostroke.layers.activation import (
    KERNEL_ACTIVATIONS,
    compiled_peaks,
    sigmoid_mul,
    silu_mul,
)
from twostroke.layers.head_linear import HeadLinear
from twostroke.layers.linear import PackedLinear
from twostroke.layers.norm import CenteredNorm, MakeNorm, OffsetNorm, RMSNorm
from twostroke.layers.packing import pack, quantize_int4, quantize_int8, rows_of, unpack
from twostroke.layers.rotary import CompiledRotation, RotaryTable
from twostroke.model_spec.rope import RopeSpec


def _load() -> Library:
    library = load_library()
    assert library is not None, "the kernels were not compiled: python hatch_build.py says why"
    return library


@pytest.fixture
def library(instruction_set: str) -> Library:
    loaded = _load()
    assert loaded.instruction_set == instruction_set
    loaded.set_num_threads(2)
    return loaded


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).bfloat16()


# Rows that make one strip and several, whole and partial blocks of outputs.
SHAPES = [
    (1, 64, 32),
    (2, 17, 64),
    (3, 100, 320),
    (5, 50, 64),
    (7, 40, 96),
    (13, 96, 128),
    (16, 1030, 256),
    (24, 100, 64),
    (37, 129, 64),
]


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [*SHAPES, (5, 17, 50), (24, 33, 40), (40, 50, 30), (50, 40, 4096)],
)
def test_linear_equals_pytorch_up_to_rounding(
    library: Library, rows: int, outputs: int, inputs: int
) -> None:
    weight, x = _random(outputs, inputs, scale=inputs**-0.5), _random(rows, inputs)
    bias, residual = _random(outputs), _random(rows, outputs)
    layer = PackedLinear(pack(weight, "bfloat16"), bias, library)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(layer.wide(x).double(), exact, atol=1e-5, rtol=1e-5)
    rounded = exact.bfloat16()
    # 8e-3: one unit in the last place of bfloat16.
    torch.testing.assert_close(layer(x), rounded, atol=1e-2, rtol=8e-3)
    torch.testing.assert_close(layer(x, residual), residual + rounded, atol=2e-2, rtol=1.6e-2)


@pytest.mark.parametrize("format", ["int8", "int4"])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
def test_quantized_linear_is_exact_for_rounded_operands(
    library: Library, format: str, rows: int, outputs: int, inputs: int
) -> None:
    packed = pack(_random(outputs, inputs, scale=inputs**-0.5), format)
    x = _random(rows, inputs)
    scale = x.float().abs().amax(1, keepdim=True) / 127
    scaled = x.float() * (127 / x.float().abs().amax(1, keepdim=True))
    rounded = torch.where(scaled < 0, (scaled - 0.5).ceil(), (scaled + 0.5).floor())
    expected = (rounded.double() * scale.double()) @ unpack(packed).double().T
    actual = PackedLinear(packed, None, library).wide(x).double()
    # A product on the edge between two integers may round either way, by one unit of the
    # activation's scale.
    slack = float(scale.max()) * float(unpack(packed).abs().max()) * 1.01
    torch.testing.assert_close(actual, expected, atol=slack, rtol=1e-4)
    assert (actual - expected).abs().mean() < slack / 20


@pytest.mark.parametrize(("format", "largest"), [("int8", 127), ("int4", 8)])
@pytest.mark.parametrize("rows", [1, 4, 6, 12, 13, 40])
def test_integers_are_multiplied_exactly(
    library: Library, format: str, largest: int, rows: int
) -> None:
    """Scales are 1. The largest products come together in the last rows: none may saturate."""
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randint(1 - largest, largest, (50, 64), generator=generator)
    weight[:, ::32] = -largest  # for int8 the largest in size, for int4 one in every group
    weight[40:] = -largest
    x = torch.randint(-127, 128, (rows, 64), generator=generator)
    x[:, 0] = 127
    x[-2:] = torch.tensor([[127], [-127]])[-min(rows, 2) :]
    actual = PackedLinear(pack(weight.bfloat16(), format), None, library).wide(x.bfloat16())
    assert torch.equal(actual, (x @ weight.T).float())


@pytest.mark.parametrize("rows", [3, 30])
def test_quantized_layers_add_bias_and_residual(library: Library, rows: int) -> None:
    bias, residual, x = _random(50), _random(rows, 50), _random(rows, 64)
    for format in ("int8", "int4"):
        packed = pack(_random(50, 64, scale=0.1), format)
        plain = PackedLinear(packed, None, library).wide(x)
        with_bias = (plain + bias.float()).bfloat16()
        layer = PackedLinear(packed, bias, library)
        torch.testing.assert_close(layer(x, residual), with_bias + residual, atol=0, rtol=8e-3)
        torch.testing.assert_close(layer(x), with_bias, atol=0, rtol=8e-3)


@pytest.mark.parametrize("format", ["bfloat16", "int8", "int4"])
def test_a_row_does_not_depend_on_the_other_rows(library: Library, format: str) -> None:
    layer = PackedLinear(pack(_random(200, 128), format), None, library)
    x = _random(40, 128)
    together = layer.wide(x)
    for rows in (1, 2, 5, 6, 8, 13, 25):
        assert torch.equal(layer.wide(x[:rows]), together[:rows])


@pytest.mark.parametrize("rows", [6, 30])
def test_rows_may_lie_apart(library: Library, rows: int) -> None:
    layer = PackedLinear(pack(_random(48, 64), "bfloat16"), None, library)
    wide = _random(rows, 96)
    assert torch.equal(layer(wide[:, :64]), layer(wide[:, :64].contiguous()))


def test_no_rows_are_no_work(library: Library) -> None:
    """Work is divided by the number of rows: 0 must not divide, which would end the process."""
    no_rows = _random(0, 64)
    for format in ("bfloat16", "int8", "int4"):
        layer = PackedLinear(pack(_random(48, 64), format), None, library)
        assert layer.wide(no_rows).shape == (0, 48)
    assert RMSNorm(_random(64), 1e-5, library)(no_rows).shape == (0, 64)
    assert silu_mul(no_rows, library).shape == (0, 32)


def test_nan_comes_out_again(library: Library) -> None:
    for format in ("bfloat16", "int8", "int4"):
        x = _random(3, 64)
        x[1, 5] = float("nan")
        layer = PackedLinear(pack(_random(32, 64), format), None, library)
        for out in (layer.wide(x), layer(x), layer(x, _random(3, 32))):
            assert out[1].isnan().all()
            assert out[[0, 2]].isfinite().all()


def test_a_heads_linear_is_its_own_alone(library: Library) -> None:
    """Heads of 18 elements of rows of 3 heads and more, to 21."""
    weights, rows = _random(3, 21, 18), _random(5, 70)
    x = rows[:, 4:58].view(5, 3, 18)
    out = HeadLinear(weights, library)(x)
    assert out.shape == (5, 3, 21)
    for head in range(3):
        alone = PackedLinear(pack(weights[head], "bfloat16"), None, library)
        assert torch.equal(out[:, head], alone(x[:, head].contiguous()))
    torch.testing.assert_close(out, HeadLinear(weights, None)(x), atol=2e-2, rtol=2e-2)


def test_norm_rotation_and_activation_equal_pytorch(library: Library) -> None:
    x, weight = _random(7, 330), _random(330)
    torch.testing.assert_close(
        RMSNorm(weight, 1e-5, library)(x), RMSNorm(weight, 1e-5)(x), atol=0, rtol=8e-3
    )
    gate_up = _random(5, 2 * 100, scale=4.0)
    torch.testing.assert_close(
        silu_mul(gate_up, library), silu_mul(gate_up, None), atol=0, rtol=8e-3
    )
    expected = sigmoid_mul(gate_up[:, 30:130], gate_up[:, :100], None)
    gated = sigmoid_mul(gate_up[:, 30:130], gate_up[:, :100], library)
    torch.testing.assert_close(gated, expected, atol=0, rtol=1e-2)
    positions = torch.tensor([0, 3, 40])
    heads = _random(3, 5, 32)
    table = RotaryTable(RopeSpec(), 32, 64, torch.device("cpu"))
    compiled = RotaryTable(RopeSpec(), 32, 64, torch.device("cpu"), library).rotation(positions)
    assert isinstance(compiled, CompiledRotation)
    expected = table.rotation(positions).apply(heads)
    torch.testing.assert_close(compiled.apply(heads[:, :4]), expected[:, :4], atol=1e-2, rtol=8e-3)
    # What lies beside the rotated heads stays as it was.
    assert torch.equal(heads[:, 4], _random(3, 5, 32)[:, 4])


@pytest.mark.parametrize("make", [RMSNorm, OffsetNorm, CenteredNorm])
def test_norms_equal_pytorch(library: Library, make: MakeNorm) -> None:
    for size in (5, 48, 330):
        x, weight = _random(7, size, scale=3.0) + 1, _random(size, scale=0.3)
        compiled, plain = make(weight, 1e-5, library), make(weight, 1e-5, None)
        torch.testing.assert_close(compiled(x), plain(x), atol=2e-3, rtol=8e-3)
        assert torch.equal(compiled(x[2:3]), compiled(x)[2:3])
        # Rows of weights take turns, over rows that lie apart.
        rows, wide = _random(3, size), _random(4, 5, size)
        compiled, plain = make(rows, 1e-5, library), make(rows, 1e-5, None)
        torch.testing.assert_close(compiled(wide[:, :3]), plain(wide[:, :3]), atol=2e-3, rtol=8e-3)


@pytest.mark.parametrize("activation", list(KERNEL_ACTIVATIONS))
def test_gated_activations_equal_pytorch(
    library: Library, activation: Callable[[Tensor, Library | None], Tensor]
) -> None:
    gate_up = _random(5, 2 * 100, scale=4.0)
    gate_up[0, :4] = torch.tensor([-90.0, 90.0, 0.0, -5.0])
    expected = activation(gate_up, None)
    torch.testing.assert_close(activation(gate_up, library), expected, atol=1e-4, rtol=8e-3)
    gate_up[2, 7] = torch.nan
    assert bool(activation(gate_up, library)[2, 7].isnan())


def test_peaks_equal_pytorch_and_are_the_first_of_equals(library: Library) -> None:
    for rows, size in ((1, 5), (3, 16), (20, 3001)):
        x = _random(rows, size).float()  # bfloat16 values: equals are frequent
        x[0, 2] = -torch.inf
        highest, index = compiled_peaks(library)(x)
        expected = x.max(dim=-1).values
        assert torch.equal(highest, expected)
        assert torch.equal(index, (x == expected[:, None]).int().argmax(dim=-1))
        for column in (0, size - 1):
            x[rows // 2] = 0.0
            x[rows // 2, column] = torch.nan
            highest, _ = compiled_peaks(library)(x)
            torch.testing.assert_close(
                highest, x.max(dim=-1).values, atol=0, rtol=0, equal_nan=True
            )
    highest, index = compiled_peaks(library)(torch.full((2, 40), -torch.inf))
    assert highest.tolist() == [-torch.inf] * 2 and index.tolist() == [0, 0]


def test_rounding_keeps_within_half_a_step() -> None:
    weight = _random(33, 64)
    q, scales = quantize_int8(weight)
    assert ((q * scales[:, None] - weight.float()).abs() <= scales[:, None] * 0.501).all()
    q, scales = quantize_int4(weight)
    steps = scales.abs().repeat_interleave(32, dim=1)
    error = (q * scales.repeat_interleave(32, dim=1) - weight.float()).abs()
    # A value of the other sign and nearly the same size is cut from 8 to 7.
    assert (error <= steps * 1.001).all()
    assert error.square().mean() < steps.square().mean() / 8


def test_packing_loses_nothing_but_precision() -> None:
    weight = _random(50, 96)
    packed = pack(weight, "bfloat16")
    assert torch.equal(unpack(packed), weight)
    indices = torch.tensor([49, 0, 17, 17])
    assert torch.equal(rows_of(packed, indices), weight[indices])
    for format, tolerance in (("int8", 0.02), ("int4", 0.4)):
        assert (unpack(pack(weight, format)) - weight.float()).abs().max() < tolerance
    zeros = torch.zeros(16, 32, dtype=torch.bfloat16)
    for format in ("int8", "int4"):
        assert torch.equal(unpack(pack(zeros, format)), zeros.float())


def test_threads_come_and_go() -> None:
    library = _load()
    layer = PackedLinear(pack(_random(512, 256), "bfloat16"), None, library)
    x = _random(30, 256)
    expected = F.linear(x.double(), unpack(layer.packed).double())
    for threads in (1, 4, 2, 3, 1, 2):
        library.set_num_threads(threads)
        for _ in range(20):
            torch.testing.assert_close(layer.wide(x).double(), expected, atol=1e-4, rtol=1e-4)


def test_a_library_from_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_library.__wrapped__  # without the cache
    with monkeypatch.context() as patch:
        patch.setattr(library_module, "Library", partial(Library, Path(str(torch._C.__file__))))
        with pytest.warns(UserWarning, match="twostroke_layout.*install twostroke again"):
            assert load() is None
    larger = type("PassCall", (PassCall,), {"_fields_": [("added", ctypes.c_int64)]})
    monkeypatch.setattr(pass_calls, "PassCall", larger)
    with pytest.warns(UserWarning, match="other sources.*install twostroke again"):
        assert load() is None


def test_without_the_library_there_is_one_warning_and_no_failure() -> None:
    code = (
        "import warnings, twostroke.kernels.library as l\n"
        "l.Library = lambda: (_ for _ in ()).throw(OSError('no such file'))\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    assert l.load_library() is None and l.load_library() is None\n"
        "assert len(caught) == 1 and 'C++ compiler' in str(caught[0].message), caught\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_engines_may_compute_at_once() -> None:
    """Each on a thread of its own, while the number of workers changes."""
    library = _load()
    library.set_num_threads(3)
    layers = [
        PackedLinear(pack(_random(outputs, 128), "bfloat16"), None, library)
        for outputs in (700, 900)
    ]
    inputs = [_random(rows, 128) for rows in (40, 60)]
    expected = [layer.wide(x) for layer, x in zip(layers, inputs)]
    correct: list[bool] = []

    def compute(layer: PackedLinear, x: Tensor, result: Tensor) -> None:
        correct.append(all(torch.equal(layer.wide(x), result) for _ in range(600)))

    threads = [
        Thread(target=compute, args=args, daemon=True) for args in zip(layers, inputs, expected)
    ]
    for thread in threads:
        thread.start()
    for count in (2, 2, 4, 1, 2):
        library.set_num_threads(count)
    for thread in threads:
        thread.join(timeout=60)
    assert correct == [True, True]
