"""Protects: Medusa heads compute what is published, from the state that a token was drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.server.tiny import VOCAB
from tests.spec_decode.engines import make_engine, metric
from tests.spec_decode.heads import head_tensors, write_heads
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import GenerationRequest
from twostroke.runtime.speculation.medusa_weights import load_medusa_heads
from twostroke.runtime.torch_executor import TorchExecutor

HIDDEN = 32


def reference(tensors: dict[str, Tensor], head: int, state: Tensor, output: Tensor) -> int:
    """One head on one state, written as the paper has it."""
    layer = 0
    while (weight := tensors.get(f"{head}.{layer}.linear.weight")) is not None:
        inner = weight @ state + tensors[f"{head}.{layer}.linear.bias"]
        state = state + inner * torch.sigmoid(inner)
        layer += 1
    return int((tensors.get(f"{head}.{layer}.weight", output) @ state).argmax())


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("vocabulary", [None, VOCAB])
def test_each_head_guesses_what_its_formula_says(
    tmp_path: Path, num_layers: int, vocabulary: int | None
) -> None:
    tensors = head_tensors(HIDDEN, vocabulary, num_layers=num_layers)
    executor = make_engine().executor
    assert isinstance(executor, TorchExecutor)
    target = executor.model
    heads = load_medusa_heads("tiny", write_heads(tmp_path / "heads", tensors), target)
    states = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    output = target.logits(torch.eye(HIDDEN)).T  # [vocabulary, hidden]
    expected = [[reference(tensors, head, state, output) for head in range(3)] for state in states]
    assert heads.guess(states, 3) == expected
    assert heads.guess(states, 1) == [row[:1] for row in expected]
    assert heads.nbytes == 4 * sum(tensor.numel() for tensor in tensors.values())


def repeating_engine(folder: Path) -> LLMEngine:
    """Its heads change nothing, so each guesses the likeliest token of the state that it reads:
    under greedy decoding, the token that was drawn from it."""
    zeros = {name: tensor.zero_() for name, tensor in head_tensors(HIDDEN).items()}
    heads = write_heads(folder / "heads", zeros)
    settings = {"method": "medusa", "model": str(heads), "num_speculative_tokens": 3}
    return make_engine(
        speculative_config={**settings, "adaptive": False}, max_num_batched_tokens=24
    )


def test_heads_read_the_state_of_the_latest_token(tmp_path: Path) -> None:
    """Beside prompts in chunks, behind drafts that were accepted, in part or not at all."""
    engine = repeating_engine(tmp_path)
    for number in range(4):
        params = SamplingParams(max_tokens=40, temperature=0, detokenize=False, ignore_eos=True)
        prompt = [(7 * number + i * i) % VOCAB for i in range(3 + 17 * number)]
        request = GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        engine.submit(request)
    latest: dict[str, int] = {}
    while engine.has_work():
        for output in engine.step():
            if output.draft_token_ids:
                assert set(output.draft_token_ids) == {latest[output.request_id]}
            latest[output.request_id] = output.token_ids[-1]
    rounds = metric(engine, "vllm:spec_decode_num_drafts_total")
    accepted = metric(engine, "vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < 3 * rounds
