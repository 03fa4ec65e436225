"""Every kernel compiles for Ampere and Hopper, fits, spills nothing, and uses the tensor cores."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.layers.gpu.test_paged_attention import Shape, Step
from tests.layers.gpu.test_quantized_linear import stored
from tests.sampling.helpers import make_request
from twostroke.layers.gpu.load import is_interpreting
from twostroke.layers.recurrent_state import Segment
from twostroke.model_spec.recurrent_forms import DeltaForm
from twostroke.runtime.state_tensors import StepStates

if TYPE_CHECKING:
    from tests.layers.gpu.offline import Compiled

    Check = Callable[..., None]

BF16 = torch.bfloat16
RECORD = Path(__file__).with_name("compiled.txt")
RECORDING = "TWOSTROKE_RECORD_COMPILED"  # writes that file anew
HEADING = "# registers, bytes of shared memory, tensor core instructions, kernel, case"
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # of a program, in bytes
MODELS = {
    "8B": Shape(32, 8, 128, 128, dtype=BF16, cache=BF16),
    "fp8 cache": Shape(32, 8, 128, 128, dtype=BF16, cache=torch.float8_e4m3fn),
    "int8 cache": Shape(32, 8, 128, 128, dtype=BF16, cache=torch.int8),
    "int8 cache of gemma2": Shape(
        16, 8, 256, 256, window=4096, soft_cap=50.0, dtype=BF16, cache=torch.int8
    ),
    "int8 cache of gpt-oss": Shape(
        64, 8, 64, 64, window=128, sinks=True, dtype=BF16, cache=torch.int8
    ),
    "int8 cache of gemma4": Shape(8, 1, 512, 512, dtype=BF16, cache=torch.int8),
    "gpt-oss": Shape(64, 8, 64, 64, window=128, sinks=True, dtype=BF16, cache=BF16),
    "gemma2": Shape(16, 8, 256, 256, window=4096, soft_cap=50.0, dtype=BF16, cache=BF16),
    "gemma4": Shape(8, 1, 512, 512, dtype=BF16, cache=BF16),
    "DeepSeek-V2-Lite": Shape(16, 1, 576, latent=512, dtype=BF16, cache=BF16),
    "DeepSeek-V3": Shape(128, 1, 576, latent=512, dtype=BF16, cache=BF16),
    "DeepSeek-V3 in fp8": Shape(128, 1, 576, latent=512, dtype=BF16, cache=torch.float8_e4m3fn),
    "DeepSeek-V3 in int8": Shape(128, 1, 576, latent=512, dtype=BF16, cache=torch.int8),
    "narrow": Shape(8, 4, 8, 8, window=9, dtype=BF16, cache=BF16),
    "float32": Shape(8, 4, 64, 64),
}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or is_interpreting(),
    reason="needs Triton's compiler (`make kernels`)",
)


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, list[str]]]:
    """What the kernels of each case took when that was recorded."""
    cases: dict[str, list[str]] = {}
    if not os.environ.get(RECORDING):
        for line in RECORD.read_text(encoding="utf-8").splitlines()[1:]:
            cases.setdefault(line.split(" ", 4)[4], []).append(line)
    yield cases
    if os.environ.get(RECORDING):
        lines = [HEADING, *(line for case in cases.values() for line in case)]
        RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def check(request: pytest.FixtureRequest, record: dict[str, list[str]]) -> Check:
    """Holds kernels to what was recorded of this test, and to what a GPU has."""

    def check(
        made: Sequence[Compiled], capability: int, *products: str, exact: bool = False
    ) -> None:
        """``products`` use tensor cores; ``exact``: float32 is there to be compared with alone."""
        case = request.node.name
        lines = [
            f"{each.registers} {each.shared} {each.tensor_cores} {each.name} {case}"
            for each in made
        ]
        for each in made:
            assert each.shared <= SHARED_MEMORY[capability], each
            assert exact or each.spilled == 0, each
            assert exact or each.name not in products or each.tensor_cores, each
        if os.environ.get(RECORDING):
            record[case] = lines
        assert lines == record.get(case), f"if it is meant, set {RECORDING}=1 and run all of these"

    return check


@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("name", MODELS)
def test_attention_compiles(name: str, capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.operators import GpuOperators

    if MODELS[name].cache is torch.float8_e4m3fn and capability < 89:
        pytest.skip("Ampere has no such numbers")
    step = Step(MODELS[name], [(1, 20), (40, 40)], torch.device("cpu"))
    with compiling(capability) as made:
        step.attend(GpuOperators(overlaps=capability >= 90))
    kernel = "paged_attention" if MODELS[name].latent is None else "latent_attention"
    assert {each.name for each in made} == {kernel, "combine_splits", "store_keys_and_values"}
    check(made, capability, kernel, exact=MODELS[name].dtype is not BF16)


@pytest.mark.parametrize("name", ["8B", "DeepSeek-V2-Lite"])
def test_attention_is_compiled_once_for_steps_of_any_size(name: str) -> None:
    """Else a server would wait for a compiler each time that a step's tables begin elsewhere."""
    from tests.layers.gpu.offline import noting
    from twostroke.layers.gpu.operators import GpuOperators

    with noting() as launched:
        for writing in range(1, 6):
            for long in (0, 1, 2):
                requests = [(1, 20 + 70 * writing)] * writing + [(40, 40 + 90 * long)] * long
                step = Step(MODELS[name], requests, torch.device("cpu"))
                step.attend(GpuOperators(overlaps=True))
    kernels = sorted(kernel for kernel, _ in launched)
    attention = "latent_attention" if name != "8B" else "paged_attention"
    # Prompts have tiles of their own, and no splits.
    assert kernels == sorted(["combine_splits", attention, attention, "store_keys_and_values"])


def test_the_delta_rule_is_compiled_once_for_steps_of_any_size() -> None:
    from tests.layers.gpu.offline import noting
    from twostroke.layers.gpu.gated_delta import GpuDelta
    from twostroke.layers.gpu.operators import GpuOperators

    form = DeltaForm(key_heads=2, value_heads=4, key_dim=32, value_dim=32, kernel=4)
    heads, vector = torch.zeros(4, dtype=BF16), torch.zeros(32, dtype=BF16)
    weight = torch.zeros(form.channels, 4, dtype=BF16)
    own = GpuDelta(form, weight, heads, heads, vector, 1e-6, GpuOperators(overlaps=True))
    history, matrices = torch.zeros(6, 3, form.channels, dtype=BF16), torch.zeros(6, 4, 32, 32)
    with noting() as launched:
        for count in range(1, 6):
            segments = [Segment(40 * i, 40 * i + 40, (i,)) for i in range(count)]
            inputs = torch.zeros(40 * count, form.channels + form.values, dtype=BF16)
            states = StepStates([(history, matrices)], segments)
            own(inputs, torch.zeros(len(inputs), 8), states, 0)
    assert len({kernel for kernel, _ in launched}) == len(launched) == 5


@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("tokens", [1, 512])
def test_experts_compile(tokens: int, capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.experts import GpuExperts
    from twostroke.layers.gpu.operators import GpuOperators
    from twostroke.layers.linear import TorchLinear

    operators = GpuOperators(overlaps=capability >= 90)
    up, down = torch.zeros(1536, 2048, dtype=BF16), torch.zeros(2048, 768, dtype=BF16)
    experts = [(TorchLinear(up), TorchLinear(down)) for _ in range(8)]
    with compiling(capability) as made:
        own = GpuExperts(
            experts, lambda rows: operators.gated_mul(rows, 0), operators, scales_inputs=False
        )
        chosen = torch.zeros(tokens, 2, dtype=torch.int64)
        own(torch.zeros(tokens, 2048, dtype=BF16), chosen, torch.ones(tokens, 2))
    assert "multiply_grouped" in {each.name for each in made}
    check(made, capability, "multiply_grouped")


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_operators_compile(capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.operators import GpuOperators

    operators = GpuOperators(overlaps=capability >= 90)
    x, heads = torch.zeros(4, 4096, dtype=BF16), torch.zeros(4, 40, 128, dtype=BF16)
    wide = torch.zeros(4, 18432, dtype=BF16)  # as in the largest of models
    with compiling(capability) as made:
        for rounded in (True, False):
            operators.normalize(x, x[0], 1e-5, rounded=rounded)
            operators.normalize(heads, heads[0], 1e-5, centered=True, rounded=rounded)
            for own in (x, wide):
                operators.add_and_normalize(own, own, own[0], 1e-5, rounded=rounded)
        operators.add_and_normalize(x, x, x[0].float(), 1e-5, centered=True, rounded=False)
        table = torch.zeros(64, 64)
        operators.rotate(heads, torch.zeros(4, dtype=torch.int64), table, table)
        for kind in range(3):
            operators.gated_mul(x, kind)
        for weight in (torch.zeros(4096, 4096, dtype=BF16), torch.zeros(28672, 4096, dtype=BF16)):
            operators.multiply_few(x, weight, None, None)
            operators.multiply_few(x, weight, weight[:, 0].contiguous(), x @ weight.T)
    norms, products = {"normalize", "add_and_normalize"}, {"gated_mul", "multiply_few"}
    assert {each.name for each in made} == {"rotate"} | norms | products
    check(made, capability, "multiply_few")


@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("format_", ["int8", "int4", "uint4"])
def test_quantized_products_compile(format_: str, capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.operators import GpuOperators
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear

    operators = GpuOperators(overlaps=capability >= 90)
    with compiling(capability) as made:
        for outputs, inputs in ((4096, 4096), (28672, 4096), (4096, 14336)):
            own = QuantizedLinear(
                stored(format_, outputs, inputs, torch.device("cpu")), None, operators
            )
            own(torch.zeros(1, inputs, dtype=BF16), torch.zeros(1, outputs, dtype=BF16))
            own(torch.zeros(48, inputs, dtype=BF16))
            own.weight_rows(torch.arange(64))
    assert {each.name for each in made} == {"multiply_quantized", "add_splits", "decode_quantized"}
    check(made, capability, "multiply_quantized")


@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("matrix", [torch.float32, BF16], ids=str)
def test_gated_delta_compiles(matrix: torch.dtype, capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.gated_delta import GpuDelta
    from twostroke.layers.gpu.operators import GpuOperators

    form = DeltaForm(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)
    heads, vector = torch.zeros(32, dtype=BF16), torch.zeros(128, dtype=BF16)
    weight = torch.zeros(form.channels, 4, dtype=BF16)
    operators = GpuOperators(overlaps=capability >= 90)
    own = GpuDelta(form, weight, heads, heads, vector, 1e-6, operators)
    history = torch.zeros(2, 3, form.channels, dtype=BF16)
    states = StepStates(
        [(history, torch.zeros(2, 32, 128, 128, dtype=matrix))], [Segment(0, 3, (1,))]
    )
    with compiling(capability) as made:
        inputs = torch.zeros(3, form.channels + form.values, dtype=BF16)
        own(inputs, torch.zeros(3, 64), states, 0)
        states = StepStates([(history, states.storage(0)[1])], [Segment(0, 70, (1,))])
        inputs = torch.zeros(70, form.channels + form.values, dtype=BF16)
        own(inputs, torch.zeros(70, 64), states, 0)
    chunks = {"solve_chunks", "pass_chunks"}
    others = {"convolve_tokens", "apply_delta", "finish_chunks"}
    assert {each.name for each in made} == others | chunks
    check(made, capability, *chunks)


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_draws_compile(capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.drawing import GpuDraws
    from twostroke.layers.gpu.operators import GpuOperators

    draws, vocab = GpuDraws(GpuOperators(overlaps=capability >= 90)), 151_936
    requests = [make_request(output=[3, 4], top_k=50, top_p=0.9, presence_penalty=1.0)]
    with compiling(capability) as made:
        logits = torch.zeros(1, vocab)
        draws.penalize(logits, requests)
        draws.draw(logits, torch.zeros(1), [0], requests)
    kernels = {"penalize_pairs", "narrow", "end_search", "weigh", "pick_tokens"}
    assert {each.name for each in made} == kernels
    check(made, capability)
    assert max(each.shared for each in made) <= 48 * 1024


@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("format_", ["int8", "int4", "uint4", "fp8"])
@pytest.mark.parametrize("tokens", [1, 512])
def test_rounded_experts_compile(tokens: int, format_: str, capability: int, check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.experts import GpuExperts
    from twostroke.layers.gpu.fp8_linear import Fp8Linear
    from twostroke.layers.gpu.operators import GpuOperators
    from twostroke.layers.gpu.quantized_linear import QuantizedLinear

    if format_ == "fp8" and capability < 89:
        pytest.skip("Ampere has no such numbers")
    operators = GpuOperators(overlaps=capability >= 90)

    def linear(outputs: int, inputs: int) -> Fp8Linear | QuantizedLinear:
        if format_ == "fp8":
            return Fp8Linear(torch.zeros(outputs, inputs, dtype=BF16), None, operators)
        weight = stored(format_, outputs, inputs, torch.device("cpu"))
        return QuantizedLinear(weight, None, operators)

    with compiling(capability) as made:
        own = GpuExperts(
            [(linear(1536, 2048), linear(2048, 768)) for _ in range(3)],
            lambda rows: operators.gated_mul(rows, 0), operators, scales_inputs=False,
        )  # fmt: skip
        chosen = torch.zeros(tokens, 2, dtype=torch.int64)
        own(torch.zeros(tokens, 2048, dtype=BF16), chosen, torch.ones(tokens, 2))
    assert "multiply_grouped_codes" in {each.name for each in made}
    check(made, capability, "multiply_grouped_codes")


def test_rounding_rows_compiles(check: Check) -> None:
    from tests.layers.gpu.offline import compiling
    from twostroke.layers.gpu.fp8_linear import Fp8Linear
    from twostroke.layers.gpu.operators import GpuOperators

    with compiling(90) as made:
        for inputs in (4096, 14336):
            linear = Fp8Linear(torch.zeros(16, inputs, dtype=BF16), None, GpuOperators())
            linear.rounded_rows(torch.zeros(3, inputs, dtype=BF16))
    assert [each.name for each in made] == ["round_rows", "round_rows"]
    check(made, 90)
