"""The fast sampler against the naive reference, and against itself beside other rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.sampling.helpers import make_request, sample
from twostroke.core.errors import InvalidRequestError
from twostroke.sampling.reference import sample_reference
from twostroke.sampling.request_state import RequestState


def reference(logits: Tensor, request: RequestState) -> int:
    """-1 where the reference says that nothing can be drawn."""
    try:
        return sample_reference(
            logits,
            request.params,
            request.token_ids[: request.answer_start],
            request.answer_token_ids,
            request.spec.seed,
            request.stop_token_ids,
            request.spec.bad_words_token_ids,
        )
    except InvalidRequestError:
        return -1


def sometimes(strategy: st.SearchStrategy[Any], default: Any) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(default), strategy)


@st.composite
def requests(draw: st.DrawFn, vocab: int) -> RequestState:
    token = st.integers(0, vocab - 1)
    # Few distinct tokens, so that counts, bad words and masks meet.
    output = draw(st.lists(st.one_of(st.integers(0, 4), token), max_size=8))
    bad_words = draw(
        sometimes(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=3), [])
    )
    return make_request(
        draw(st.lists(token, min_size=1, max_size=8)),
        output,
        seed=draw(st.integers(0, 2**64 - 1)),
        eos=frozenset(draw(st.lists(token, max_size=2))),
        bad_words=tuple(tuple(word) for word in bad_words),
        temperature=draw(
            st.one_of(st.sampled_from([0.0, 1e-30, 0.5, 1.0, 100.0]), st.floats(0.01, 5))
        ),
        top_k=draw(sometimes(st.one_of(st.integers(1, 8), st.integers(1, 2 * vocab)), 0)),
        top_p=draw(sometimes(st.floats(0, 1, exclude_min=True), 1.0)),
        min_p=draw(sometimes(st.floats(0, 1), 0.0)),
        repetition_penalty=draw(sometimes(st.floats(0.1, 3), 1.0)),
        presence_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        frequency_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        logit_bias=draw(sometimes(st.dictionaries(token, st.floats(-100, 100), max_size=4), {})),
        min_tokens=draw(st.sampled_from([0, 0, 4, 10])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(sometimes(st.lists(token, max_size=3), [])),
        allowed_token_ids=draw(sometimes(st.lists(token, min_size=1, max_size=20), None)),
        banned_token_ids=draw(
            sometimes(st.lists(st.one_of(st.integers(0, 4), token), max_size=9), [])
        ),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, list[RequestState]]:
    vocab = draw(st.integers(50, 300))
    rows = draw(st.lists(requests(vocab), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = torch.randn(len(rows), vocab, generator=generator) * draw(
        st.sampled_from([0.0, 0.3, 3.0, 30.0])
    )
    if draw(st.booleans()):
        logits = logits.to(
            torch.bfloat16
        ).float()  # what checkpoints really give: many equal values
    if draw(st.booleans()):
        logits[torch.rand(logits.shape, generator=generator) < 0.3] = -torch.inf
    return logits, rows


@settings(deadline=None, max_examples=150)
@given(batches())
def test_fast_equals_reference(batch: tuple[Tensor, list[RequestState]]) -> None:
    logits, rows = batch
    output = sample(logits, rows)
    assert output.token_ids == [reference(logits[row], request) for row, request in enumerate(rows)]
    assert list(output.errors) == [row for row, token in enumerate(output.token_ids) if token == -1]


@settings(deadline=None, max_examples=60)
@given(batches(), st.randoms(use_true_random=False))
def test_company_makes_no_difference(batch: tuple[Tensor, list[RequestState]], random: Any) -> None:
    logits, rows = batch
    output = sample(logits, rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = sample(logits[order], [rows[row] for row in order])
    for place, row in enumerate(order):
        alone = sample(logits[row : row + 1], [rows[row]])
        assert alone.token_ids == [output.token_ids[row]] == [shuffled.token_ids[place]]
        assert alone.logprobs.get(0) == output.logprobs.get(row) == shuffled.logprobs.get(place)


@pytest.mark.parametrize(
    "params", [{}, {"top_p": 0.95}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.05}]
)
def test_a_large_vocabulary(params: dict[str, Any]) -> None:
    """Longer than one vector register, one thread's share and the first attempt at the nucleus."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 20_011, generator=generator)
    rows = [make_request((1, 2), seed=seed, **params) for seed in range(8)]
    assert sample(logits, rows).token_ids == [
        reference(logits[row], request) for row, request in enumerate(rows)
    ]


def test_reference_by_hand() -> None:
    """Everything at once, small enough to follow: what is left is one token."""
    logits = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 0.0])
    request = make_request(
        (4,), (5,), banned_token_ids=[0], bad_words=((5, 1),), min_tokens=5, stop_token_ids=[2],
        allowed_token_ids=[0, 1, 2, 3, 4, 6], logit_bias={6: 7.0}, repetition_penalty=2.0,
        temperature=0,
    )  # fmt: skip
    # 0 banned, 1 ends a bad word, 2 stops too early, 5 not allowed; 3 has 6.0, 4 has 5.0 / 2, 6 has
    # 0.0 + 7.0.
    assert reference(logits, request) == 6
    assert sample(logits.unsqueeze(0), [request]).token_ids == [6]


def test_reference_says_when_nothing_is_left() -> None:
    with pytest.raises(InvalidRequestError, match="masked"):
        request = make_request(banned_token_ids=[0, 1])
        sample_reference(torch.zeros(2), request.params, [0], [], 0, frozenset())
