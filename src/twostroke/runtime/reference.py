"""Generation in its simplest form, which the engine must reproduce token for token.

Slow on purpose: without KV cache, batch or blocks, every token is computed from the whole sequence
before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.models.decoder import Decoder
from twostroke.sampling.reference import sample_reference


def naive_logits(model: Decoder, token_ids: Sequence[int]) -> Tensor:
    """Logits at every position of one sequence, float32 ``[tokens, vocab]``."""
    with torch.inference_mode():
        tokens = torch.tensor(token_ids, device=model.device)
        positions = torch.arange(len(token_ids), device=model.device)
        return model.logits(
            model.forward(tokens, positions, ReferenceAttention(model.spec.sliding_windows))
        )


def generate_naive(
    model: Decoder,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int = 0,
    eos_token_ids: frozenset[int] = frozenset(),
    max_total_tokens: int | None = None,
    bad_words_token_ids: Sequence[tuple[int, ...]] = (),
) -> tuple[list[int], FinishReason]:
    """Continue a prompt until a stop token, ``max_tokens`` or ``max_total_tokens``.

    The latter counts prompt and output. Stop strings are text and not looked at here. The stop
    token is part of the output.

    Args:
        seed: In [0, 2**64), of this one sample.
        eos_token_ids: The model's end tokens, left out of account under ``params.ignore_eos``.
        max_total_tokens: By default the model's context length.

    Raises:
        InvalidRequestError: Every token is masked.
    """
    limit = max_total_tokens or model.spec.context_length
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= eos_token_ids
    output: list[int] = []
    while True:
        logits = naive_logits(model, [*prompt_token_ids, *output])[-1]  # [vocab]
        token = sample_reference(
            logits, params, prompt_token_ids, output, seed, stop_token_ids, bad_words_token_ids
        )
        output.append(token)
        if token in stop_token_ids:
            return output, FinishReason.STOP
        if len(output) == params.max_tokens or len(prompt_token_ids) + len(output) >= limit:
            return output, FinishReason.LENGTH
