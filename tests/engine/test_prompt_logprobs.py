"""Log-probabilities of a prompt: each position once, right, and in order, through chunks and
preemption.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import tiny_config, write_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import naive_logits


@pytest.mark.parametrize("num_blocks", [30, 9])
def test_every_position_once_whatever_happens_on_the_way(tmp_path: Path, num_blocks: int) -> None:
    """With nine blocks the request is preempted after its prompt, and all of it is computed a
    second time.
    """
    folder = write_checkpoint(tmp_path / "model", tiny_config("llama"))
    options = {
        "max_model_len": 64,
        "max_num_batched_tokens": 16,
        "max_prefill_chunk": 5,
        "block_size": 8,
    }
    size = num_blocks * 8 * 2 * 2 * 2 * 8 * 4
    config = EngineConfig.from_flat(
        {"model": str(folder), "device": "cpu", "kv_cache_memory": size, **options}
    )
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    prompts = {str(i): [(i * 7 + j * 3) % 96 for j in range(18)] for i in range(3)}
    for request_id, prompt in prompts.items():
        params = SamplingParams(
            temperature=0,
            max_tokens=20,
            ignore_eos=True,
            prompt_logprobs=2,
            logprobs=0,
            detokenize=False,
        )
        engine.submit(
            GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
        )
    scores: dict[str, list[PositionLogprobs]] = {request_id: [] for request_id in prompts}
    while engine.has_work():
        for output in engine.step():
            scores[output.request_id] += output.prompt_logprobs or []
    assert (engine.scheduler.batch.num_preemptions > 0) == (num_blocks == 9)
    for request_id, prompt in prompts.items():
        expected = torch.log_softmax(naive_logits(executor.model, prompt), -1)
        assert [position.chosen.token_id for position in scores[request_id]] == prompt[1:]
        for index, position in enumerate(scores[request_id]):
            assert position.chosen.logprob == pytest.approx(
                expected[index, prompt[index + 1]].item(), abs=1e-4
            )
            assert position.top[0].token_id == int(expected[index].argmax())
            assert len(position.top) == 2


def test_a_prompt_of_one_token_has_an_empty_list(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", tiny_config("llama"))
    config = EngineConfig.from_flat(
        {"model": str(folder), "device": "cpu", "max_model_len": 64, "max_num_seqs": 2}
    )
    engine = LLMEngine(load_torch_executor(config), config=config)
    params = SamplingParams(max_tokens=1, prompt_logprobs=2, detokenize=False)
    engine.submit(GenerationRequest(request_id="a", prompt_token_ids=[5], params=params))
    (output,) = engine.step()
    assert output.prompt_logprobs == []
