"""Protects: training's attention on a CPU equals PyTorch's, gradients too, and is causal."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from training.attention import QUERIES, causal_attention
from training.data import Example, collate
from training.model import hidden_states, make_model

torch.manual_seed(0)


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )


def _inputs(heads: int, kv_heads: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, heads, length, 16), (2, kv_heads, length, 16), (2, kv_heads, length, 16)]
    return [torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("length", [1, 7, QUERIES, QUERIES + 1, 2 * QUERIES + 50])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2)])
def test_values_and_gradients_equal_pytorchs(heads: int, kv_heads: int, length: int) -> None:
    outputs = []
    for function in (_fused, causal_attention):
        inputs = query, key, value = _inputs(heads, kv_heads, length, torch.float32)
        out = function(query, key, value, 0.3)
        gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        out.backward(gradient)  # type: ignore[no-untyped-call]
        outputs.append([out, *(tensor.grad for tensor in inputs)])
    for mine, reference in zip(*outputs, strict=True):
        torch.testing.assert_close(mine, reference, atol=2e-5, rtol=1e-4)


def test_bfloat16_is_as_near_as_its_steps() -> None:
    query, key, value = _inputs(4, 2, QUERIES + 40, torch.bfloat16)
    exact = _fused(query.float(), key.float(), value.float(), 0.25)
    assert (causal_attention(query, key, value, 0.25).float() - exact).abs().max() < 0.03


def test_a_models_hidden_states_do_not_know_what_comes() -> None:
    """Through transformers' layers, as training calls them."""
    model = make_model("draft", seed=0)
    ids = torch.randint(3, 4000, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    changed = [*ids[:30], *reversed(ids[30:])]
    batch = collate([Example(row, [True] * 40, list(range(40))) for row in (ids, changed)])
    with torch.autocast("cpu", torch.bfloat16):
        hidden = hidden_states(model, batch.ids, batch.positions)[1]
    assert torch.equal(hidden[0, :30], hidden[1, :30])
    assert not torch.equal(hidden[0, 30:], hidden[1, 30:])
