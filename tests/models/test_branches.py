"""Protects: a decoder takes a new kind of branch without a change of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.checkpoints import tiny_config
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import LayerSpec, MlpSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.models.support import parse_runnable

TOKENS = torch.tensor([5, 9, 70, 3])


@dataclass(frozen=True)
class GeluKind:
    """GPT-2's MLP: a bias, no gate."""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.mlp is not None and not layer.mlp.gated

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        assert layer.mlp is not None
        size = layer.mlp.size
        return [
            vector_parameter("mlp_norm", "ln_2", hidden),
            *linear_parameters("fc", [("mlp.c_fc", size)], hidden, True),
            *linear_parameters("projection", [("mlp.c_proj", hidden)], size, True),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> GeluBranch:
        return GeluBranch(parts)


class GeluBranch:
    mixes_tokens = False
    state: tuple[StateShape, ...] = ()

    def __init__(self, parts: BranchParts) -> None:
        self._norm = parts.norm("mlp_norm")
        self._fc, self._projection = parts.linear("fc"), parts.linear("projection")

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x = hidden.sum()
        x = x if rows is None else x[rows]
        return Hidden(self._projection(F.gelu(self._fc(self._norm(x))), residual=x))

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._fc, self._projection

    def compiled(self) -> CompiledBranch | None:
        return None


FAMILY = DecoderFamily(branches=(AttentionKind(), GeluKind()), layer="h.{}.")


def gelu_spec() -> ModelSpec:
    spec = parse_runnable(tiny_config("llama", hidden_size=64))
    mlp = MlpSpec(48, (), activation="gelu", gated=False, bias=True)
    return replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))


def tensors(spec: ModelSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    """By the decoder's names; norms around 1."""
    generator = torch.Generator().manual_seed(0)
    parameters = {}
    for parameter in FAMILY.parameters(spec):
        values = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.name.endswith("norm")
        parameters[parameter.name] = (1 + 0.2 * values if is_norm else 0.2 * values).to(dtype)
    return parameters


def forward(model: Decoder, rows: Tensor | None = None) -> Tensor:
    attention = ReferenceAttention(model.spec.sliding_windows)
    with torch.inference_mode():
        return model.forward(TOKENS, torch.arange(len(TOKENS)), attention, rows)


def test_checkpoint_names_are_the_familys() -> None:
    names = {name for parameter in FAMILY.parameters(gelu_spec()) for name, _ in parameter.parts}
    assert {"h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.bias", "h.0.self_attn.q_proj.weight"} <= names
    assert not any("gate_proj" in name for name in names)


def test_a_new_branch_computes_its_own_formula() -> None:
    spec = gelu_spec()
    given = tensors(spec, torch.float32)
    for index in range(spec.num_layers):
        given[f"{index}.output.weight"].zero_()  # attention then adds nothing
    model = Decoder(spec, FAMILY, dict(given), 16)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, spec.norm_eps)

    x = given["embed"][TOKENS]
    for i in range(spec.num_layers):
        inner = F.linear(norm(x, given[f"{i}.mlp_norm"]), given[f"{i}.fc.weight"])
        inner = F.gelu(inner + given[f"{i}.fc.bias"])
        x = x + F.linear(inner, given[f"{i}.projection.weight"], given[f"{i}.projection.bias"])
    torch.testing.assert_close(forward(model), norm(x, given["norm"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_run_one_by_one_where_the_kernels_lack_a_branch(dtype: torch.dtype) -> None:
    spec = gelu_spec()
    model = Decoder(spec, FAMILY, tensors(spec, dtype), 16)
    assert model.compiled_pass is None
    states = forward(model)
    rows = torch.tensor([1, 3])
    torch.testing.assert_close(forward(model, rows), states[rows])
    assert not torch.equal(states, forward(Decoder(spec, FAMILY, _quiet(spec, dtype), 16)))


def test_only_wanted_rows_go_on_after_attention_wherever_it_stands() -> None:
    spec = gelu_spec()
    family = DecoderFamily(branches=(GeluKind(), AttentionKind()), layer="h.{}.")
    model = Decoder(spec, family, tensors(spec, torch.float32), 16)
    rows = torch.tensor([1, 3])
    torch.testing.assert_close(forward(model, rows), forward(model)[rows])


def _quiet(spec: ModelSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same weights, but the new branch adds nothing."""
    parameters = tensors(spec, dtype)
    for name, tensor in parameters.items():
        if ".projection." in name:
            tensor.zero_()
    return parameters
