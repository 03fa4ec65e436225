"""A GPU's draws are those of the plain sampler: tokens, ties, failures, whatever the company."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.sampling.helpers import make_request
from twostroke.core.errors import InvalidRequestError
from twostroke.sampling.penalties import apply_penalties
from twostroke.sampling.reference import sample_reference
from twostroke.sampling.report import NO_TOKEN
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.sampler import Sampler

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

VOCAB = 240
TRUNCATIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 2 * VOCAB},
    {"top_p": 0.01},
    {"top_p": 0.9},
    {"top_p": 1 - 1e-12},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.8},
    {"top_k": 3, "top_p": 0.99, "min_p": 0.05},
]


@pytest.fixture
def sampler(operators: GpuOperators, device: torch.device) -> Sampler:
    return sampler_of(VOCAB, operators, device)


def sampler_of(vocab: int, operators: GpuOperators, device: torch.device) -> Sampler:
    from twostroke.layers.gpu.drawing import GpuDraws

    return Sampler(vocab, device, draws=GpuDraws(operators))


def logits_of(number: int, rows: int, vocab: int = VOCAB) -> Tensor:
    """Steep, flat or all equal; with many ties, as bfloat16 gives; with masked tokens."""
    generator = torch.Generator().manual_seed(number)
    logits = torch.randn(rows, vocab, generator=generator) * (0.0, 0.3, 3.0, 30.0)[number % 4]
    if number % 3 == 0:
        logits = logits.to(torch.bfloat16).float()
    if number % 5 == 0:
        logits[torch.rand(logits.shape, generator=generator) < 0.3] = -torch.inf
    return logits


def request_of(chance: random.Random) -> RequestState:
    some = chance.random
    return make_request(
        [chance.randrange(9) for _ in range(5)],
        [chance.randrange(9) for _ in range(chance.randrange(6))],
        seed=chance.getrandbits(64),
        temperature=chance.choice([0.0, 1e-30, 0.5, 1.0, 1.0, 1.0, 100.0]),
        repetition_penalty=chance.choice([1.0, 1.0, 0.5 + some()]),
        presence_penalty=chance.choice([0.0, 0.0, 4 * some() - 2]),
        frequency_penalty=chance.choice([0.0, 0.0, 4 * some() - 2]),
        banned_token_ids=chance.choice([[], [1, 2]]),
        **chance.choice(TRUNCATIONS),
    )


def reference(logits: Tensor, request: RequestState) -> int:
    prompt = request.token_ids[: request.answer_start]
    try:
        return sample_reference(
            logits, request.params, prompt, request.answer_token_ids, request.spec.seed, frozenset()
        )
    except InvalidRequestError:
        return NO_TOKEN


@pytest.mark.parametrize("number", range(12))
def test_tokens_are_those_of_the_reference(
    number: int, sampler: Sampler, device: torch.device
) -> None:
    chance = random.Random(number)
    requests = [request_of(chance) for _ in range(5)]
    logits = logits_of(number, len(requests))
    expected = [reference(own, request) for own, request in zip(logits, requests)]
    assert sampler.sample(logits.clone().to(device), requests).token_ids == expected
    row = number % 5  # alone, with other launches than the batch has
    own = logits[row : row + 1].clone().to(device)
    assert sampler.sample(own, requests[row : row + 1]).token_ids == expected[row : row + 1]


@pytest.mark.parametrize(
    "params", [{}, {"top_p": 0.95}, {"top_k": 50, "top_p": 0.9}, {"top_k": 3000}, {"min_p": 0.05}]
)
def test_a_vocabulary_of_several_chunks(
    params: dict[str, Any], operators: GpuOperators, device: torch.device
) -> None:
    logits = logits_of(1, 3, 20_011)
    logits[0] = logits[0].to(torch.bfloat16).float()  # ties that lie in several chunks
    requests = [make_request((1, 2), seed=seed, **params) for seed in range(3)]
    expected = [reference(own, request) for own, request in zip(logits, requests)]
    sampler = sampler_of(20_011, operators, device)
    assert sampler.sample(logits.to(device), requests).token_ids == expected


def test_every_share_of_the_uniform_finds_its_token(sampler: Sampler, device: torch.device) -> None:
    """Many seeds on one row, so that first and last tokens and both sides of ties are drawn."""
    row = torch.full((VOCAB,), -torch.inf)
    row[[0, 5, 6, 7, VOCAB - 1]] = torch.tensor([1.0, 2.0, 2.0, 2.0, 1.5])
    requests = [make_request(seed=seed, top_k=3 if seed % 2 else 0) for seed in range(60)]
    tokens = sampler.sample(row.repeat(60, 1).to(device), requests).token_ids
    assert tokens == [reference(row, request) for request in requests]
    assert set(tokens[::2]) == {0, 5, 6, 7, VOCAB - 1} and set(tokens[1::2]) == {5, 6, 7}


def test_rows_that_fail_are_named_and_harm_no_other(sampler: Sampler, device: torch.device) -> None:
    logits = logits_of(2, 5)
    requests = [make_request(seed=row, top_p=0.9, logprobs=2) for row in range(5)]
    expected = [reference(own, request) for own, request in zip(logits, requests)]
    logits[1, 3], logits[2], logits[3, 7] = torch.nan, -torch.inf, torch.inf
    output = sampler.sample(logits.to(device), requests)
    assert output.token_ids == [expected[0], NO_TOKEN, NO_TOKEN, NO_TOKEN, expected[4]]
    assert output.non_finite == [1, 3] and list(output.errors) == [2]
    assert list(output.logprobs) == [0, 4]


def test_penalties_have_the_bits_of_pytorch(operators: GpuOperators, device: torch.device) -> None:
    from twostroke.layers.gpu.drawing import GpuDraws

    chance = random.Random(3)
    requests = [request_of(chance) for _ in range(40)]
    logits = logits_of(6, len(requests)).to(device)
    expected, own = logits.clone(), logits.clone()
    apply_penalties(expected, requests)
    GpuDraws(operators).penalize(own, requests)
    assert not torch.equal(expected, logits)
    assert torch.equal(own, expected)


def test_nothing_is_read_before_the_tokens(sampler: Sampler, device: torch.device) -> None:
    """What would wait for a GPU is not called before the draw is finished."""
    requests = [make_request(seed=row, top_k=5, top_p=0.9) for row in range(3)]
    logits = logits_of(2, 3).to(device)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the host waits for the device")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "item", "__bool__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        begun = sampler.begin(logits, requests)
    assert begun.finish().token_ids == begun.tokens.tolist()
