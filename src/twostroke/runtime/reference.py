"""Generation in its simplest form, which the engine must reproduce token for token.

Slow on purpose: without KV cache, batch or blocks, every token is computed from the whole sequence
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from twostroke.constraints.constraint import AllowedTokens, Constraint
from twostroke.core.pooling import Pooling
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.layers.kv_layout import KVLayout
from twostroke.layers.recurrent_state import FreshStates
from twostroke.models.language_model import LanguageModel
from twostroke.sampling.reference import sample_reference


def naive_logits(
    model: LanguageModel, token_ids: Sequence[int], layout: KVLayout | None = None
) -> Tensor:
    """Logits at every position of one sequence, float32 ``[tokens, vocab]``.

    Args:
        layout: Keys and values are seen as a cache of this format would show them.
    """
    with torch.inference_mode():
        tokens = torch.tensor(token_ids, device=model.device)
        positions = torch.arange(len(token_ids), device=model.device)
        attention = _attention(model, layout)
        states = FreshStates(model.state_shapes, len(token_ids), model.device)
        return model.logits(model.forward(tokens, positions, attention, states=states))


def generate_naive(
    model: LanguageModel,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int = 0,
    eos_token_ids: frozenset[int] = frozenset(),
    max_total_tokens: int | None = None,
    bad_words_token_ids: Sequence[tuple[int, ...]] = (),
    constraint: Constraint | None = None,
    layout: KVLayout | None = None,
) -> tuple[list[int], FinishReason]:
    """Continue a prompt until a stop token, ``max_tokens`` or ``max_total_tokens``.

    The latter counts prompt and output. Stop strings are text and not looked at here. The stop
    token is part of the output.

    Args:
        seed: In [0, 2**64), of this one sample.
        eos_token_ids: The model's end tokens, left out of account under ``params.ignore_eos``.
        max_total_tokens: By default the model's context length.
        constraint: What the answer has to be, before its first token.
        layout: See ``naive_logits``.

    Raises:
        InvalidRequestError: Every token is masked.
    """
    limit = max_total_tokens or model.spec.context_length
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= eos_token_ids
    output: list[int] = []
    while True:
        logits = naive_logits(model, [*prompt_token_ids, *output], layout)[-1]  # [vocab]
        allowed = None if constraint is None else _token_ids(constraint.allowed())
        ends_form = allowed is not None and allowed <= eos_token_ids
        token = sample_reference(
            logits,
            params if not ends_form else replace(params, min_tokens=0),
            prompt_token_ids,
            output,
            seed,
            stop_token_ids,
            bad_words_token_ids,
            allowed,
        )
        output.append(token)
        if constraint is not None:
            constraint.advance([token])
        if token in stop_token_ids:
            return output, FinishReason.STOP
        if len(output) == params.max_tokens or len(prompt_token_ids) + len(output) >= limit:
            return output, FinishReason.LENGTH


def embed_naive(model: LanguageModel, token_ids: Sequence[int], pooling: Pooling) -> list[float]:
    """The embedding of one prompt, from a pass over the whole of it."""
    with torch.inference_mode():
        tokens = torch.tensor(token_ids, device=model.device)
        positions = torch.arange(len(token_ids), device=model.device)
        attention = _attention(model)
        hidden = model.forward(tokens, positions, attention).double()  # [tokens, hidden]
        chosen = {"last": hidden[-1], "cls": hidden[0], "mean": hidden.mean(0)}[pooling.kind]
        vector = chosen[: pooling.size]
        return (vector / vector.norm() if pooling.normalise else vector).tolist()


def _attention(model: LanguageModel, layout: KVLayout | None = None) -> ReferenceAttention:
    specs = [layer.attention for layer in model.spec.each_layer()]
    return ReferenceAttention(model.spec.sliding_windows, layout, specs)


def _token_ids(allowed: AllowedTokens) -> frozenset[int]:
    return frozenset(
        token for token in range(8 * len(allowed.bits)) if allowed.bits[token // 8] >> token % 8 & 1
    )
