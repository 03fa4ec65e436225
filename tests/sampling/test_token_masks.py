"""Masks of whole vocabularies: both ways to apply them equal a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from twostroke.sampling.token_masks import (
    TokenMask,
    apply_in_memory,
    apply_on_device,
    apply_token_masks,
)

Apply = Callable[[Tensor, Mapping[int, TokenMask]], None]


def mask_of(allowed: set[int], vocab_size: int) -> TokenMask:
    bits = np.zeros(-(-vocab_size // 8), dtype=np.uint8)
    for token in allowed:
        bits[token // 8] |= 1 << token % 8
    return TokenMask(bits, False)


@pytest.mark.parametrize("apply", [apply_in_memory, apply_on_device, apply_token_masks])
@pytest.mark.parametrize("vocab_size", [1, 8, 331, 1000])
def test_what_is_not_allowed_is_minus_infinity_and_all_else_as_before(
    apply: Apply, vocab_size: int
) -> None:
    random = Random(vocab_size)
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(0))
    logits[2, 0] = -torch.inf
    allowed = {row: set(random.sample(range(vocab_size), vocab_size // 2)) for row in (0, 2, 3)}
    expected = logits.clone()
    for row, tokens in allowed.items():
        for token in set(range(vocab_size)) - tokens:
            expected[row, token] = -torch.inf
    apply(logits, {row: mask_of(tokens, vocab_size) for row, tokens in allowed.items()})
    assert torch.equal(logits, expected)


def test_no_masks_touch_nothing() -> None:
    logits = torch.zeros(2, 9)
    apply_token_masks(logits, {})
    assert not logits.any()
