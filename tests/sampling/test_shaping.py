"""Protects: a reported distribution is the one that the token was drawn from, filter by filter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.sampling.helpers import make_request, sample
from tests.sampling.test_reference import batches
from twostroke.core.distribution import Distribution, ShapedToken
from twostroke.core.sampling_params import SamplingParams
from twostroke.sampling.reference import masked_tokens, penalize, truncate
from twostroke.sampling.report import NO_TOKEN, SamplerOutput
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.shaping import MODEL, shaped_distribution

ORDER = (
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)
NEUTRAL = SamplingParams(max_tokens=None)


def wanting(request: RequestState, top: int = 50) -> RequestState:
    """The request, asking for its distribution, with its output as the prompt's part of it."""
    params = replace(
        request.params, distribution=top, answer_tokens_in_prompt=request.num_answer_tokens
    )
    return replace(request, params=params)


def distributions(output: SamplerOutput, rows: list[RequestState]) -> dict[int, Distribution]:
    """Of the rows whose raw logits the sampler has kept."""
    return {
        row: shaped_distribution(raw, rows[row], output.token_ids[row])
        for row, raw in output.raw_logits.items()
    }


def distribution_of(logits: Tensor, request: RequestState, top: int = 50) -> Distribution:
    rows = [wanting(request, top)]
    return distributions(sample(logits.unsqueeze(0), rows), rows)[0]


def by_id(found: Distribution) -> dict[int, ShapedToken]:
    return {token.token_id: token for token in found.tokens}


def reference_weights(logits: Tensor, request: RequestState, upto: str) -> dict[int, int]:
    """In plain loops: what is left of the weights behind the filters up to one of them."""
    names = ORDER[: ORDER.index(upto) + 1] if upto != MODEL else ()
    on = {name: getattr(request.params, name) for name in names if name != "bad_words"}
    params = SamplingParams(**{"temperature": 1.0, "max_tokens": None, **on})
    words = request.spec.bad_words_token_ids if "bad_words" in names else ()
    prompt = request.token_ids[: request.answer_start]
    output = request.answer_token_ids
    scores = logits.clone()
    for token in masked_tokens(len(scores), params, output, request.stop_token_ids, words):
        scores[token] = -torch.inf
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    penalize(scores, params, prompt, output)
    scaled = scores - scores.max()
    if params.temperature == 0:
        return {scores.tolist().index(float(scores.max())): 1}
    scaled = scaled / torch.tensor(max(params.temperature, 1e-20), dtype=torch.float32)
    weights = [int(probability * 2**40) for probability in scaled.exp().tolist()]
    return {t: weights[t] for t in truncate(scaled.tolist(), weights, params) if weights[t]}


@settings(deadline=None, max_examples=30)
@given(batches())
def test_each_stage_is_that_of_plain_loops(batch: tuple[Tensor, list[RequestState]]) -> None:
    logits, rows = batch
    asking = [wanting(request) for request in rows]
    output = sample(logits, asking)
    shown = distributions(output, asking)
    for row, request in enumerate(rows):
        if output.token_ids[row] == NO_TOKEN:
            assert row not in shown
            continue
        found = shown[row]
        assert [stage.name for stage in found.stages] == sorted(
            [stage.name for stage in found.stages], key=(MODEL, *ORDER).index
        )
        for place, stage in enumerate(found.stages):
            weights = reference_weights(logits[row], request, stage.name)
            total = sum(weights.values())
            assert stage.num_tokens == len(weights)
            for token in found.tokens:
                share = weights.get(token.token_id, 0) / total
                assert token.probabilities[place] == share
            listed = sum(token.probabilities[place] for token in found.tokens)
            assert stage.rest == pytest.approx(1 - listed, abs=1e-9)
            entropy = -sum(w / total * math.log2(w / total) for w in weights.values())
            assert stage.entropy == pytest.approx(entropy, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_the_uniform_number_lies_in_the_share_of_the_drawn_token(
    batch: tuple[Tensor, list[RequestState]],
) -> None:
    logits, rows = batch
    asking = [wanting(request) for request in rows]
    output = sample(logits, asking)
    assert output.token_ids == sample(logits, rows).token_ids
    for row, found in distributions(output, asking).items():
        token = by_id(found)[output.token_ids[row]]
        assert found.token_id == token.token_id and token.removed_by is None
        assert found.position == rows[row].num_tokens
        if rows[row].params.greedy:
            assert found.uniform is None and (token.begin, token.end) == (0, 1)
        else:
            assert found.uniform is not None
            # Shares are whole multiples of 1 / total: one of them, for the rounding.
            assert token.begin - 1e-12 <= found.uniform < token.end + 1e-12


def test_a_token_knows_the_filter_that_removed_it() -> None:
    logits = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -60.0])
    request = make_request(
        banned_token_ids=[0], temperature=0.5, top_k=4, top_p=0.99, min_p=0.01, seed=3
    )
    found = distribution_of(logits, request)
    assert [stage.name for stage in found.stages] == [
        MODEL, "banned_token_ids", "temperature", "top_k", "top_p", "min_p",
    ]  # fmt: skip
    removed = {token.token_id: token.removed_by for token in found.tokens}
    assert removed == {
        0: "banned_token_ids", 1: None, 2: None, 3: None, 4: "top_p", 5: "top_k", 6: MODEL,
    }  # fmt: skip
    assert [stage.num_tokens for stage in found.stages] == [6, 5, 5, 4, 3, 3]


def test_raw_logprobs_and_ranks_are_the_models_own() -> None:
    logits = torch.tensor([0.5, 2.0, -1.0, 2.0])
    found = distribution_of(logits, make_request(temperature=3.0, repetition_penalty=2.0))
    expected = torch.log_softmax(logits, dim=-1)
    assert [token.token_id for token in found.tokens] == [1, 3, 0, 2]
    for token in found.tokens:
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-6)
    assert [token.rank for token in found.tokens] == [1, 1, 3, 4]


def test_what_a_bias_lifts_is_listed_beside_the_likeliest() -> None:
    logits = torch.arange(300, 0, -1, dtype=torch.float32)
    found = distribution_of(logits, make_request(logit_bias={299: 100.0, 298: 99.0}), top=2)
    assert [token.token_id for token in found.tokens][:2] == [0, 1]
    biased = distribution_of(logits / 10, make_request(logit_bias={299: 100.0}), top=2)
    assert {0, 1, 299} <= by_id(biased).keys()
    assert biased.token_id == 299


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"temperature": 0}])
def test_only_the_first_token_that_is_drawn_is_told(params: dict[str, Any]) -> None:
    """What the prompt brought of the answer was not drawn; what follows is not asked for."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    request = make_request((1, 2), (3, 4), distribution=5, **params)
    assert sample(logits, [request]).raw_logits == {}
    own = replace(request, params=replace(request.params, answer_tokens_in_prompt=2))
    assert distributions(sample(logits, [own]), [own])[0].position == 4
    assert sample(logits, [own.after([7])]).raw_logits == {}


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.97},
        {"top_p": 1 - 1e-9, "temperature": 3.0},
        {"top_k": 3000},
        {"top_k": 70, "top_p": 0.9},
        {"top_k": 19_000, "top_p": 0.5, "min_p": 0.01},
    ],
)
def test_a_large_vocabulary_is_not_put_in_order_as_a_whole(params: dict[str, Any]) -> None:
    """Nuclei that the first candidates hold, and those that need more of them."""
    logits = torch.randn(20_011, generator=torch.Generator().manual_seed(0))
    request = make_request((1, 2), seed=4, **params)
    found = distribution_of(logits, request)
    for place, stage in enumerate(found.stages):
        weights = reference_weights(logits, request, stage.name)
        assert stage.num_tokens == len(weights), stage.name
        total = sum(weights.values())
        for token in found.tokens:
            assert token.probabilities[place] == weights.get(token.token_id, 0) / total
    assert [stage.name for stage in found.stages][1:] == [name for name in ORDER if name in params]
