"""Requests and calls that the sampling tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.specs import resolved
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest
from twostroke.sampling.report import SamplerOutput
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.sampler import Sampler


def make_request(
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    *,
    seed: int = 0,
    eos: frozenset[int] = frozenset(),
    bad_words: tuple[tuple[int, ...], ...] = (),
    **params: Any,
) -> RequestState:
    params.setdefault("max_tokens", None)
    spec = resolved(
        "r",
        prompt,
        params=SamplingParams(**params),
        seed=seed,
        eos_token_ids=eos,
        bad_words_token_ids=bad_words,
    )
    return RequestState.of(NewRequest(spec, list(output)))


def sample(logits: Tensor, requests: Sequence[RequestState]) -> SamplerOutput:
    """Sample from a copy of ``logits`` [rows, vocab]."""
    return Sampler(logits.shape[1], "cpu").sample(logits.clone(), requests)


def support(logits: Sequence[float], draws: int = 400, **request: Any) -> set[int]:
    """Tokens that come up in ``draws`` draws with different seeds."""
    rows = torch.tensor([logits] * draws)
    return set(
        sample(rows, [make_request(seed=seed, **request) for seed in range(draws)]).token_ids
    )
