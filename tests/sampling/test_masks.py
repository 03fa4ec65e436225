from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch

from tests.sampling.helpers import make_request, sample, support
from twostroke.core.errors import InvalidRequestError, NonFiniteLogitsError
from twostroke.core.request import Request
from twostroke.sampling.masks import MANY_TOKENS, apply_logit_bias, apply_masks
from twostroke.sampling.pairs import Pairs


def masked(request: Request, vocab: int = 5) -> list[int]:
    logits = torch.zeros(1, vocab)
    apply_masks(logits, [request])
    return [token for token, logit in enumerate(logits[0].tolist()) if logit == -torch.inf]


def test_allowed_tokens_keep_their_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    apply_masks(logits, [make_request(allowed_token_ids=[2, 0, 2]), make_request()])
    assert logits.tolist() == [[1.0, -torch.inf, 3.0], [1.0, 2.0, 3.0]]


def test_banned_tokens() -> None:
    assert masked(make_request(banned_token_ids=[3, 1])) == [1, 3]
    assert masked(make_request(banned_token_ids=[1], allowed_token_ids=[1, 2])) == [0, 1, 3, 4]
    assert support([0.0] * 5, banned_token_ids=[3, 1]) == {0, 2, 4}


def test_many_tokens_are_masked_as_few_are() -> None:
    """Also where most of them, or all, are outside the vocabulary; the row beside is not
    touched.
    """
    few, many = [3, 1, 3], [3, 1, 3, *range(5, 5 + 2 * MANY_TOKENS)]
    for vocab in (5, 300):
        for tokens in (few, many):
            logits = torch.zeros(2, vocab)
            apply_masks(
                logits,
                [make_request(banned_token_ids=tokens), make_request(allowed_token_ids=tokens)],
            )
            listed = {token for token in tokens if token < vocab}
            for token in range(vocab):
                expected = [-torch.inf, 0.0] if token in listed else [0.0, -torch.inf]
                assert logits[:, token].tolist() == expected, (vocab, len(tokens), token)
    assert masked(make_request(allowed_token_ids=many[3:])) == [0, 1, 2, 3, 4]
    assert masked(make_request(banned_token_ids=many[3:])) == []


def test_long_lists_never_become_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of Python numbers cost 0.1 us per token of a list, row and step: everybody's steps took
    seconds.
    """
    pairs: list[int] = []
    add = Pairs.add

    def counted(
        self: Pairs, row: int, tokens: Collection[int], values: Iterable[float] | float = 0.0
    ) -> None:
        pairs.append(len(tokens))
        add(self, row, tokens, values)

    monkeypatch.setattr(Pairs, "add", counted)
    vocab = 10 * MANY_TOKENS
    for field in ("allowed_token_ids", "banned_token_ids"):
        params: dict[str, Any] = {field: list(range(vocab - 1)) * 2}
        assert len(masked(make_request(**params), vocab)) == (
            1 if field == "allowed_token_ids" else vocab - 1
        )
    assert sum(pairs) == 0


@pytest.mark.parametrize(
    ("bad_words", "prompt", "output", "expected"),
    [
        (((2,),), (0,), (), [2]),  # a single token is never drawn
        (((1, 2),), (0,), (), []),
        (((1, 2),), (0,), (1,), [2]),
        (((1, 2),), (0,), (1, 0), []),
        (((1, 2),), (1,), (), []),  # only the output counts, not the prompt
        (((1, 2, 3),), (1,), (2,), []),
        (((1, 2, 3),), (0,), (0, 1, 2), [3]),
        (((1, 1, 1),), (0,), (1,), []),
        (((1, 2), (0, 1, 4), (3,)), (0,), (0, 1), [2, 3, 4]),
    ],
)
def test_bad_words(
    bad_words: tuple[tuple[int, ...], ...],
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    expected: list[int],
) -> None:
    assert masked(make_request(prompt, output, bad_words=bad_words)) == expected


def test_min_tokens_masks_what_would_stop() -> None:
    eos = frozenset({4})
    assert masked(make_request(output=(1,), min_tokens=2, eos=eos, stop_token_ids=[2])) == [2, 4]
    assert masked(make_request(output=(1, 1), min_tokens=2, eos=eos, stop_token_ids=[2])) == []
    assert masked(
        make_request(output=(1,), min_tokens=2, eos=eos, ignore_eos=True, stop_token_ids=[2])
    ) == [2]


def test_ids_outside_the_vocabulary_have_no_effect() -> None:
    request = make_request(
        min_tokens=1,
        eos=frozenset({99}),
        bad_words=((77,),),
        banned_token_ids=[5, 1],
        logit_bias={5: 1.0},
    )
    assert masked(request) == [1]
    assert sample(torch.zeros(1, 5), [request]).errors == {}


def test_logit_bias_is_added() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 3.0], [1.0, 2.0, 3.0]])
    apply_logit_bias(
        logits, [make_request(logit_bias={0: 2.5, 1: 100.0}), make_request(logit_bias={2: -3})]
    )
    assert logits.tolist() == [[3.5, -torch.inf, 3.0], [1.0, 2.0, 0.0]]


def test_a_row_without_a_token_fails_alone() -> None:
    requests = [
        make_request(temperature=0),
        make_request(allowed_token_ids=[1, 2], banned_token_ids=[1, 2], logprobs=2),
        make_request(temperature=0, allowed_token_ids=[3], min_tokens=1, stop_token_ids=[3]),
        make_request(allowed_token_ids=[4], top_k=2, top_p=0.5, logprobs=1),
        make_request(allowed_token_ids=[3], banned_token_ids=[3], top_p=0.5),
    ]
    output = sample(torch.tensor([[0.0, 5.0, 1.0, 2.0, 3.0]] * 5), requests)
    assert output.token_ids == [1, -1, -1, 4, -1]
    assert list(output.errors) == [1, 2, 4]
    assert list(output.logprobs) == [3]
    error = output.errors[1]
    assert (
        isinstance(error, InvalidRequestError) and error.param == "allowed_token_ids" and error.hint
    )
    assert "allowed_token_ids and banned_token_ids" in error.message
    assert "allowed_token_ids and min_tokens" in output.errors[2].message


def test_a_row_in_which_the_model_left_nothing_blames_the_model() -> None:
    output = sample(
        torch.tensor([[-torch.inf] * 3, [0.0] * 3]), [make_request(), make_request(temperature=0)]
    )
    assert isinstance(output.errors[0], NonFiniteLogitsError)
    assert output.token_ids[0] == -1 and output.token_ids[1] == 0
