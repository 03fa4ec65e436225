"""Protects: what the page shows of the inside of pilot is what pilot computes."""

from __future__ import annotations

import math

import pytest
import torch

from twostroke.core.errors import InvalidRequestError
from twostroke.model_spec.model_files import resolve_model
from twostroke.questions.inside_text import MAX_TOKENS, WHOLE, AskedText, InsideText
from twostroke.runtime.look_inside import EmbeddedModel
from twostroke.runtime.reference import naive_logits
from twostroke.text.tokenizer import Tokenizer

TEXT = "Why is decode slower than prefill?"


@pytest.fixture(scope="module")
def pilot() -> EmbeddedModel:
    return EmbeddedModel()


@pytest.fixture(scope="module")
def seen(pilot: EmbeddedModel) -> InsideText:
    return pilot.answer(AskedText(text=TEXT))


def rows(head: list[int]) -> list[list[int]]:
    """A head's numbers, a row for each token that looks."""
    number = (math.isqrt(8 * len(head) + 1) - 1) // 2
    return [head[row * (row + 1) // 2 : (row + 1) * (row + 2) // 2] for row in range(number)]


def test_each_token_looks_at_itself_and_those_before_and_at_all_of_them_together(
    seen: InsideText,
) -> None:
    assert "".join(token.text for token in seen.tokens) == TEXT
    assert [len(layer.attention) for layer in seen.layers] == [4] * 8
    for layer in seen.layers:
        for head in layer.attention:
            found = rows(head)
            assert [len(row) for row in found] == list(range(1, len(seen.tokens) + 1))
            # Each number is rounded to a thousandth.
            assert all(abs(sum(row) - WHOLE) <= (len(row) + 1) / 2 for row in found)
            assert found[0] == [WHOLE]


def test_the_first_layer_attends_as_its_formula_says(
    pilot: EmbeddedModel, seen: InsideText
) -> None:
    """Softmax of products of rotated queries and keys, written out from the stored weights."""
    from safetensors.torch import load_file

    stored = load_file(resolve_model("pilot") / "model.safetensors")
    prefix = "model.layers.0."
    ids = [token.id for token in seen.tokens]
    x = stored["model.embed_tokens.weight"][ids].double()
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    x = x * stored[f"{prefix}input_layernorm.weight"].double()

    def heads(name: str, number: int) -> torch.Tensor:
        weight = stored[f"{prefix}self_attn.{name}_proj.weight"].double()
        return rotated((x @ weight.T).view(len(ids), number, 64))

    query, key = heads("q", 4), heads("k", 2)
    for head, numbers in enumerate(seen.layers[0].attention):
        for row, shares in enumerate(rows(numbers)):
            scores = (key[: row + 1, head // 2] @ query[row, head]) / 8
            expected = WHOLE * torch.softmax(scores, 0)
            # The model computes in bfloat16.
            assert torch.tensor(shares).sub(expected).abs().max() < 20


def rotated(vectors: torch.Tensor) -> torch.Tensor:
    """Rotary positions with base 100,000 over heads of 64, ``[tokens, heads, 64]``."""
    turns = 100_000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    angle = (torch.arange(len(vectors))[:, None] * turns)[:, None]
    first, second = vectors[..., :32], vectors[..., 32:]
    return torch.cat(
        (
            first * angle.cos() - second * angle.sin(),
            second * angle.cos() + first * angle.sin(),
        ),
        -1,
    )


def test_the_last_layer_says_what_the_model_says(pilot: EmbeddedModel, seen: InsideText) -> None:
    ids = [token.id for token in seen.tokens]
    logits = naive_logits(pilot._model, ids)[-1]
    best = logits.topk(len(seen.layers[-1].likeliest))
    tokenizer = Tokenizer.from_folder(resolve_model("pilot"))
    assert [token.text for token in seen.layers[-1].likeliest] == [
        tokenizer.token_bytes(token).decode() for token in best.indices.tolist()
    ]
    assert [token.logit for token in seen.layers[-1].likeliest] == pytest.approx(
        best.values.tolist(), abs=1e-3
    )
    assert seen.layers[0].likeliest != seen.layers[-1].likeliest


def test_tokens_and_their_text_look_alike_and_what_follows_changes_nothing(
    pilot: EmbeddedModel, seen: InsideText
) -> None:
    ids = [token.id for token in seen.tokens]
    assert pilot.answer(AskedText(tokens=ids)) == seen
    longer = pilot.answer(AskedText(tokens=[*ids, 310, 663]))
    for own, more in zip(seen.layers, longer.layers, strict=True):
        for one, other in zip(own.attention, more.attention, strict=True):
            difference = torch.tensor(one) - torch.tensor(other[: len(one)])
            assert difference.abs().max() <= 10  # products of more rows round otherwise


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (AskedText(text="a b c d " * 49), f"at most {MAX_TOKENS} are looked at"),
        (AskedText(tokens=[1, 4096]), "4096 is none of pilot's tokens"),
    ],
)
def test_what_is_too_long_or_no_token_is_refused(
    pilot: EmbeddedModel, asked: AskedText, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        pilot.answer(asked)
