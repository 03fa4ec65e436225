"""Protects: Medusa heads compute what is published, from the state that a token was drawn from."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.server.tiny import VOCAB
from tests.spec_decode.engines import make_engine, metric
from tests.spec_decode.heads import head_tensors, write_heads
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kernels.library import load_library
from twostroke.layers.linear import make_linear
from twostroke.runtime.speculation.medusa_weights import load_medusa_heads
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.spec_decode.medusa import LayerByHead, MedusaHeads, StackedLayer
from twostroke.startup import load_engine
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_template import ChatTemplate

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


def test_the_first_guesses_of_each_number_are_made_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They set things up, and would be taken for what later ones take."""
    counts, guess = list[int](), MedusaHeads.guess

    def counted(heads: MedusaHeads, hidden: Tensor, count: int) -> list[list[int]]:
        counts.append(count)
        return guess(heads, hidden, count)

    monkeypatch.setattr(MedusaHeads, "guess", counted)
    repeating_engine(tmp_path)
    assert all(counts.count(number) >= 2 for number in (1, 2, 3))


def test_heads_on_compiled_kernels_guess_as_pytorchs_do() -> None:
    """On a CPU their layers run on the kernels that the model runs on, head by head."""
    library = load_library()
    if library is None:
        pytest.skip("no compiled kernels on this machine")
    generator = torch.Generator().manual_seed(3)
    weight = (torch.randn(3, 64, 64, generator=generator) / 8).bfloat16()
    bias = torch.randn(3, 64, generator=generator).bfloat16()
    x = torch.randn(2, 5, 64, generator=generator).bfloat16()
    by_head = LayerByHead([make_linear(w, b, None, library) for w, b in zip(weight, bias)])
    stacked = StackedLayer(weight.transpose(1, 2).contiguous(), bias[:, None])
    torch.testing.assert_close(by_head(x), stacked(x), atol=0.05, rtol=0.02)


def test_pilot_drafts_after_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real heads and a real scheduler, with the times of steps given: the first two guesses of each
    number take 90 ms, as on a cold machine, and all else what it mostly takes."""
    settings = {"method": "medusa"}
    config = EngineConfig.from_flat(
        {
            "model": "pilot",
            "device": "cpu",
            "kv_cache_memory": 2**25,
            "speculative_config": settings,
        }
    )
    with closing(load_engine(config)) as engine:
        _give_times(engine, monkeypatch)
        assert engine.tokenizer is not None
        template = ChatTemplate(engine.tokenizer.chat_templates["default"])
        encoder = ChatEncoder(template, engine.tokenizer)
        tokens = accepted = 0
        for number, question in enumerate(("What is a KV cache?", "What is prefill?")):
            prompt = encoder.encode(
                [{"role": "user", "content": question}], add_generation_prompt=True
            )
            params = SamplingParams(max_tokens=100, temperature=0)
            engine.submit(
                GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
            )
            while engine.has_work():
                for output in engine.step():
                    tokens += len(output.token_ids)
                    accepted += output.num_accepted_drafts
        assert accepted > 0.2 * tokens


def _give_times(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have results say other times than those that were measured."""
    executor, seen, plans = engine.executor, Counter[int](), list[StepPlan]()
    launch, collect = executor.launch, executor.collect

    def noted(plan: StepPlan) -> None:
        plans.append(plan)
        launch(plan)

    def timed() -> StepResult:
        result, plan = collect(), plans.pop(0)
        depth = max((len(drafts) for drafts in result.draft_token_ids.values()), default=0)
        seen[depth] += 1
        drafting = 0.0 if not depth else 0.09 if seen[depth] <= 2 else 0.0003
        result.timings["draft"] = drafting
        result.duration = 0.0003 + 0.00005 * plan.num_tokens + drafting
        return result

    monkeypatch.setattr(executor, "launch", noted)
    monkeypatch.setattr(executor, "collect", timed)
