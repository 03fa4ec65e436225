"""Protects: log-probabilities are those of the raw logits, ranked, whatever the filters do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.sampling.helpers import make_request, sample
from twostroke.core.logprobs import PositionLogprobs
from twostroke.sampling import logprobs as logprobs_module
from twostroke.sampling.logprobs import logprobs_of, prompt_logprobs

# Probabilities 1/2, 1/8, 1/4, 1/8, 0.
PROBABILITIES = [4.0, 1.0, 2.0, 1.0, 0.0]


def rounded(entry: PositionLogprobs) -> tuple[tuple[int, float, int], list[tuple[int, float, int]]]:
    """With probabilities in place of their logarithms."""
    chosen, *top = [
        (t.token_id, round(math.exp(t.logprob), 5), t.rank) for t in (entry.chosen, *entry.top)
    ]
    return chosen, top


def test_prompt_logprobs_by_hand() -> None:
    logits = (torch.tensor([PROBABILITIES] * 3) * 8).log()
    entries = [rounded(entry) for entry in prompt_logprobs(logits, [0, 3, 4], 4)]
    top = [(0, 0.5, 1), (2, 0.25, 2), (1, 0.125, 3), (3, 0.125, 3)]
    assert entries == [((0, 0.5, 1), top), ((3, 0.125, 3), top), ((4, 0.0, 5), top)]


@pytest.mark.parametrize("num_top", [0, 1, 9])
def test_the_list_is_as_long_as_asked_and_possible(num_top: int) -> None:
    (entry,) = prompt_logprobs(torch.zeros(1, 5), [2], num_top)
    assert [t.token_id for t in entry.top] == list(range(min(num_top, 5)))
    assert all(t.rank == 1 for t in entry.top) and entry.chosen.rank == 1


def test_no_positions_no_entries() -> None:
    assert prompt_logprobs(torch.zeros(0, 5), [], 3) == []


def test_chunks_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    whole = prompt_logprobs(logits, list(range(7)), 3)
    monkeypatch.setattr(logprobs_module, "CHUNK_LOGITS", 25)
    assert prompt_logprobs(logits, list(range(7)), 3) == whole


def test_log_probabilities_match_log_softmax() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1)) * 10
    expected = logits.log_softmax(dim=-1)
    for row, entry in enumerate(prompt_logprobs(logits, list(range(9)), 5)):
        values, ids = expected[row].topk(5)
        assert [t.token_id for t in entry.top] == ids.tolist()
        assert [t.logprob for t in entry.top] == pytest.approx(values.tolist(), abs=1e-5)
        assert entry.chosen.logprob == pytest.approx(float(expected[row, row]), abs=1e-5)
        assert entry.chosen.rank == 1 + int((expected[row] > expected[row, row]).sum())


def test_sampled_rows_report_raw_logits_whatever_the_filters_do() -> None:
    logits = torch.tensor([PROBABILITIES] * 3).log()
    requests = [
        make_request(
            temperature=0,
            logprobs=2,
            banned_token_ids=[0],
            repetition_penalty=3.0,
            logit_bias={3: 9.0},
        ),
        make_request(temperature=0),
        make_request(temperature=50.0, top_k=1, logprobs=0),
    ]
    output = sample(logits, requests)
    assert output.token_ids == [3, 0, 0]
    assert {row: rounded(entry) for row, entry in output.logprobs.items()} == {
        0: ((3, 0.125, 3), [(0, 0.5, 1), (2, 0.25, 2)]),
        2: ((0, 0.5, 1), []),
    }


def test_listed_tokens_take_the_place_of_the_likeliest() -> None:
    """In their order, each once as often as it is listed, by the raw logits whatever is allowed."""
    logits = (torch.tensor([PROBABILITIES]) * 8).log()
    fields: dict[str, Any] = {
        "logprobs": 4,
        "logprob_token_ids": [3, 4, 0],
        "allowed_token_ids": [2],
    }
    output = sample(logits, [make_request(temperature=0.0, **fields)])
    assert rounded(output.logprobs[0]) == (
        (2, 0.25, 2),
        [(3, 0.125, 3), (4, 0.0, 5), (0, 0.5, 1)],
    )


def test_ranks_are_the_same_for_few_tokens_and_many() -> None:
    """Equal logits share a rank, and -inf has one, too."""
    logits = torch.randn(300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).float()
    logits[[5, 9]] = -torch.inf
    every = list(range(300))
    single = [logprobs_of(logits, [token])[0] for token in every]
    assert logprobs_of(logits, every) == single
    assert single[5].rank == single[9].rank == 299
