"""The losses that training uses."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.data import Example, collate
from training.model import Chooser, text_loss


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


def test_a_batch_without_answers_has_no_loss() -> None:
    """A batch of bare questions has no text to learn; its loss is zero, not 0 / 0."""
    model = tiny_model()
    bare = collate([Example([3, 4, 5], [False] * 3, [0, 1, 2], "why", 2)])
    loss, hidden = text_loss(model, bare)
    assert (loss.item(), hidden.shape) == (0.0, (1, 8, 16))
    answered = collate(
        [
            Example([3, 4, 5, 6], [False, False, False, True], [0, 1, 2, 3]),
            Example([3], [False], [0]),
        ]
    )
    # The one answer is token 6 behind 3, 4 and 5.
    shares = model(torch.tensor([[3, 4, 5]])).logits[0, -1].log_softmax(-1)
    assert text_loss(model, answered)[0].item() == pytest.approx(-shares[6].item(), rel=1e-5)


def test_the_chooser_reads_the_state_where_the_answer_begins() -> None:
    """Later tokens must not reach it, and rows without a question have no part in it."""
    model, chooser = tiny_model(), Chooser(16, 3)
    wanted = torch.tensor([[0.2, 0.3, 0.5]])

    def loss(answer: int, other: int) -> float:
        rows = [
            Example([other, 7, 8, 9], [False] * 4, [0, 1, 2, 3]),
            Example([3, 4, 5, answer], [False] * 4, [0, 1, 2, 3], "why", 2),
        ]
        batch = collate(rows)
        _, hidden = text_loss(model, batch)
        cross_entropy: torch.Tensor = chooser(model, batch, hidden, wanted)
        return cross_entropy.item()

    assert loss(6, 1) == loss(7, 2) > 0
